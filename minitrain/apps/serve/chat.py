"""A conversation as the text that a model was trained to go on from: its tokenizer's template.

The template is a program that came with the model, so it runs in jinja's sandbox. Settings and the
names that it may use are those of transformers' `apply_chat_template`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from minitrain.errors import InputError

Message = Mapping[str, str]  # role, content
CONFIG, OWN_FILE = "tokenizer_config.json", "chat_template.jinja"


class ChatTemplate:
    """`ChatTemplate.of(files)` is None where the tokenizer has none."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = to_json
        environment.globals |= {
            "raise_exception": raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form),
        }
        self.template = environment.from_string(source)
        self.special_tokens = special_tokens

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> ChatTemplate | None:
        """From a tokenizer's files, name -> content."""
        config = json.loads(files.get(CONFIG, b"{}"))
        source = files[OWN_FILE].decode() if OWN_FILE in files else config.get("chat_template")
        if isinstance(source, list):  # several, by name
            source = {one["name"]: one["template"] for one in source}.get("default")
        if source is None:
            return None
        tokens = {name: config.get(name) for name in ("bos_token", "eos_token", "pad_token")}
        texts = {n: t["content"] if isinstance(t, dict) else t for n, t in tokens.items() if t}
        return cls(source, texts)

    def render(self, messages: Sequence[Message], answer: bool = True) -> str:
        """Up to where the assistant is to speak (`answer`), or just these; InputError where the
        template refuses."""
        try:
            return self.template.render(
                messages=messages, add_generation_prompt=answer, **self.special_tokens
            )
        except TemplateError as error:
            raise InputError(f"the model's chat template refuses these messages: {error}") from None


def raise_exception(message: str) -> None:
    raise TemplateError(message)


def to_json(value: object, indent: int | None = None) -> str:
    """Without the escapes that jinja's own makes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
