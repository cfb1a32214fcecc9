"""The options of `load`, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Asked:
    """Each field is the option of its name."""

    url: str
    model: str | None
    api_key: str | None
    rates: list[float]
    requests: int
    prompt_tokens: tuple[int, int]
    new_tokens: tuple[int, int]
    trace: Path | None
    scale: float
    shared: int
    prefixes: int
    vocabulary: int
    may_stop: bool
    first_token: float
    per_token: float
    seed: int
    timeout: float
    picture: Path | None
    json: Path | None
