"""The worlds of the default corpus, by `worlds.json`: village, forest, sea and space."""

from __future__ import annotations

import json
from pathlib import Path

from minitrain.data.stories.domain import Domain, words


def read_worlds(file: Path) -> tuple[Domain, ...]:
    """A domain for each object: its lists of words are texts, its weights numbers."""
    worlds = json.loads(file.read_text(encoding="utf-8"))
    return tuple(
        Domain(name, **{field: _value(value) for field, value in world.items()})
        for name, world in worlds.items()
    )


def _value(value: str | list[int] | int) -> tuple[str, ...] | tuple[int, ...] | int:
    if isinstance(value, str):
        return words(value)
    return tuple(value) if isinstance(value, list) else value


WORLDS = read_worlds(Path(__file__).with_name("worlds.json"))
