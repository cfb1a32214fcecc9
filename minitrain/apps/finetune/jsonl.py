"""A .jsonl file of examples, an object a line, in any of three forms:

    {"prompt": "Translate: dog", "completion": " chien"}
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    {"text": "learned whole"}

A line that has none of them is named by its number.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from minitrain.errors import InputError

ASSISTANT = "assistant"  # the role whose turns are learned


@dataclass(frozen=True)
class Example:
    prompt: str
    completion: str


@dataclass(frozen=True)
class Chat:
    messages: tuple[dict[str, str], ...]  # role, content


Text = Example | Chat


def read_jsonl(path: Path) -> list[Text]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a text may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): give a .jsonl file in UTF-8") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise InputError(f"{path} is empty: give an object a line")
    return [_example(path, number, line) for number, line in numbered]


def _example(path: Path, number: int, line: str) -> Text:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(
            f"line {number} of {path} is no JSON ({error}): put one object a line"
        ) from error
    keys = set(value) if isinstance(value, dict) else set()
    for prompt, completion in (("prompt", "completion"), (None, "text")):
        if completion in keys and (prompt is None or prompt in keys):
            parts = "" if prompt is None else value[prompt], value[completion]
            if all(isinstance(part, str) for part in parts) and parts[1]:
                return Example(*parts)
    if "messages" in keys:
        return _chat(path, number, value["messages"])
    raise InputError(
        f"line {number} of {path} has {', '.join(sorted(keys)) or 'no fields'}: each line needs "
        'texts {"prompt": …, "completion": …}, the second not empty, or {"text": …}, or '
        '{"messages": …}'
    )


def _chat(path: Path, number: int, messages: object) -> Chat:
    turns = messages if isinstance(messages, list) else []
    good = all(
        isinstance(turn, dict)
        and all(isinstance(turn.get(field), str) for field in ("role", "content"))
        for turn in turns
    )
    if not good or not any(turn["role"] == ASSISTANT and turn["content"] for turn in turns):
        raise InputError(
            f"line {number} of {path} has no chat in its messages: give a list of "
            '{"role": …, "content": …} in texts, with something that the assistant says'
        )
    return Chat(tuple(turns))
