"""A .jsonl file of examples, one object per line, in any of three forms:

    {"prompt": "Translate: dog", "completion": " chien"}
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    {"text": "learned whole"}

Messages may come with tools, documents and chat_template_kwargs for the model's template. An error
about a line with none of the forms, or two, names its number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from minitrain.errors import InputError

ASSISTANT = "assistant"  # the role whose turns are learned
GIVEN = {"tools": list, "documents": list, "chat_template_kwargs": dict}
FORMS = (("prompt", "completion"), ("text",), ("messages",))


@dataclass(frozen=True)
class Example:
    prompt: str
    completion: str


@dataclass(frozen=True)
class Chat:
    messages: tuple[dict[str, object], ...]  # role, content, and other fields the template reads
    given: Mapping[str, object] = field(default_factory=dict)  # tools, …


Text = Example | Chat


def read_jsonl(path: Path) -> list[Text]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a text may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): give a .jsonl file in UTF-8") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise InputError(f"{path} is empty: give an object a line")
    return [_example(f"line {number} of {path}", line) for number, line in numbered]


def _example(where: str, line: str) -> Text:
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is no JSON ({error}): put one object a line") from error
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise InputError(
            f"{where} has {half}, half of a surrogate pair: write the whole character"
        ) from None
    keys = set(value) if isinstance(value, dict) else set()
    forms = [form for form in FORMS if keys.issuperset(form)]
    if len(forms) > 1:
        both = " and ".join(form[-1] for form in forms)
        raise InputError(f"{where} has {both}, and one of them is learned: leave the others out")
    if forms == [("messages",)]:
        return _chat(where, value)
    parts = ["", *(value[name] for form in forms for name in form)][-2:]
    if not (forms and all(isinstance(part, str) for part in parts) and parts[1]):
        raise InputError(
            f"{where} has {', '.join(sorted(keys)) or 'no fields'}: each line needs texts "
            '{"prompt": …, "completion": …}, the second not empty, or {"text": …}, or '
            '{"messages": …}'
        )
    return Example(*parts)


def _chat(where: str, value: dict[str, object]) -> Chat:
    messages = value["messages"]
    turns = messages if isinstance(messages, list) else []
    if not all(map(_is_turn, turns)) or not any(map(_is_answer, turns)):
        raise InputError(
            f"{where} has no chat in its messages: give a list of "
            '{"role": …, "content": …} in texts, with something that the assistant says'
        )
    if any(turn.get("weight", 1) != 1 for turn in turns):
        raise InputError(
            f"{where} has a message with another weight than 1, and whatever the assistant says "
            "is learned alike: leave the weight out, or end the conversation before that message"
        )
    given = {name: value[name] for name in GIVEN if value.get(name) is not None}
    for name, found in given.items():
        if not isinstance(found, GIVEN[name]):
            kind = "an object" if GIVEN[name] is dict else "a list"
            raise InputError(f"{where} has {name} that are not {kind}: give them as JSON, unquoted")
    return Chat(tuple(turns), {**given.pop("chat_template_kwargs", {}), **given})


def _is_turn(turn: object) -> bool:
    """With tool_calls, the content may be null."""
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
        return False
    content = turn.get("content")
    return isinstance(content, str) or (content is None and bool(turn.get("tool_calls")))


def _is_answer(turn: dict[str, object]) -> bool:
    return turn["role"] == ASSISTANT and bool(turn.get("content") or turn.get("tool_calls"))
