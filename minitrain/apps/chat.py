"""Chat templates: render a conversation as the prompt format a model was trained on.

The template is code shipped with the model, so it runs in jinja's sandbox, with the settings and
variables of transformers' `apply_chat_template`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from secrets import token_hex

from jinja2 import Template, TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Call, CallBlock, Name, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from minitrain.errors import InputError

Message = Mapping[str, object]  # role, content, …
CONFIG, OWN_FILE, TOKENS_FILE = (
    "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json",
)  # fmt: skip
REASONING = ("reasoning_content", "thinking", "reasoning")  # its names in various templates
MARK = token_hex(16)  # marks generated text; occurs in no message
LONGEST_REASON = 300


class ChatTemplate:
    """A broken template is refused only on use: the model can still complete text."""

    def __init__(self, source: str | Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """`source`: the template, or several by name; `special_tokens`: bos_token, …"""
        self.sources = {"default": source} if isinstance(source, str) else source
        self.special_tokens = special_tokens

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> ChatTemplate | None:
        """The template in a tokenizer's files, name -> content; None if there is none."""
        config = read_json(files, CONFIG)
        if "added_tokens_decoder" not in config:
            config |= read_json(files, TOKENS_FILE)
        source = config.get("chat_template")
        if OWN_FILE in files:
            source = read_text(files, OWN_FILE)
        if isinstance(source, list):
            named = [one for one in source if isinstance(one, dict)]
            source = {one.get("name"): one.get("template") for one in named}
        return None if source is None else cls(source, special_tokens_in(config))

    def render(
        self,
        messages: Sequence[Message],
        answer: bool = True,
        given: Mapping[str, object] | None = None,
        mark: str = "",
    ) -> str:
        """The messages, up to the assistant's next turn if `answer`; InputError if the template
        refuses. `given`: tools, documents and other template variables; `mark` is written around
        the text inside {% generation %}."""
        names = {"tools": None, "documents": None, **self.special_tokens, **(given or {})}
        names["messages"] = [without_nulls(message) for message in messages]
        names["add_generation_prompt"] = answer
        names["_generated"] = lambda caller: mark + caller() + mark
        try:
            return self._template(names["tools"]).render(names)
        except Exception as error:  # third-party code: it may fail in any way
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            reason = " ".join(f"{kind}{error}".split())[:LONGEST_REASON]
            raise InputError(
                f"the model's chat template refuses these messages: {reason}"
            ) from None

    def pieces(
        self, messages: Sequence[Message], given: Mapping[str, object] | None = None
    ) -> list[str] | None:
        """The rendered conversation, cut at the template's marks: every second piece is generated.
        None if the template marks nothing."""
        pieces = self.render(messages, False, given, MARK).split(MARK)
        marks = self._template((given or {}).get("tools")).environment.marks
        return pieces if marks else None

    def _template(self, tools: object) -> Template:
        """Chooses among several as transformers does."""
        name = "default" if tools is None else "tool_use"
        if name not in self.sources:
            name = "default"
        if name not in self.sources:
            raise TemplateError(f"there are {', '.join(self.sources)}, and none is called default")
        return compiled(self.sources[name])


class Generation(Extension):
    """{% generation %} … {% endgeneration %}: `_generated` is called with its contents."""

    tags = frozenset({"generation"})

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        self.environment.marks = True
        call = Call(Name("_generated", "load"), [], [], None, None)
        return CallBlock(call, [], [], body).set_lineno(line)


@lru_cache(8)
def compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.marks = False
    environment.filters["tojson"] = to_json
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return environment.from_string(source)


def raise_exception(message: str) -> None:
    raise TemplateError(message)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Like jinja's own, without HTML escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def without_nulls(message: Message) -> dict[str, object]:
    """A message without nulls, its reasoning under every name that templates use."""
    given = {name: value for name, value in message.items() if value is not None}
    reasoning = next((given[name] for name in REASONING if name in given), None)
    if reasoning is None:
        return given
    return {"thinking": reasoning, **given, "reasoning_content": reasoning}


def special_tokens_in(config: Mapping[str, object]) -> dict[str, str]:
    """bos_token, … and the model's own, such as image_token."""
    extra = config.get("extra_special_tokens")
    named = {name: value for name, value in config.items() if name.endswith("_token")}
    named |= extra if isinstance(extra, dict) else {}
    texts = {n: v.get("content") if isinstance(v, dict) else v for n, v in named.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def read_json(files: Mapping[str, bytes], name: str) -> dict[str, object]:
    """Empty where the tokenizer has no such file."""
    text = read_text(files, name) if name in files else "{}"
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"the tokenizer's {name} is no JSON object ({error}): put the model's own there"
        ) from None


def read_text(files: Mapping[str, bytes], name: str) -> str:
    try:
        return files[name].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"the tokenizer's {name} is not in UTF-8 ({error}): put the model's own there"
        ) from None
