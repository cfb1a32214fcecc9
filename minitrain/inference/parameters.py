"""Sampling parameters of a request: how its tokens are drawn, and when it ends."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass

from minitrain.errors import InputError

Kind = Callable[[object], "float | int | str | None"]
TINY = 5e-324  # the smallest number above 0


def as_whole(value: object) -> int | None:
    """The value of a whole number of Python, numpy or torch; None for anything else."""
    try:
        is_row = getattr(value, "ndim", 0) > 0
        return None if is_flag(value) or is_row else operator.index(value)
    except TypeError:
        return None


def as_number(value: object) -> float | None:
    """The value of a finite number of Python, numpy or torch; None for anything else."""
    try:
        number = math.nan if is_flag(value) or isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def as_stop(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def is_flag(value: object) -> bool:
    """True for booleans, which Python counts as numbers but which are mistakes here."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


RANGES = (  # name, kind, lowest, highest, description
    ("max_new_tokens", as_whole, 1, math.inf, "a whole number, 1 or more"),
    ("temperature", as_number, 0, math.inf, "0 (the likeliest) to about 1.5"),
    ("top_k", as_whole, 1, math.inf, "a whole number, 1 or more, or None"),
    ("top_p", as_number, TINY, 1, "above 0 and at most 1, or None"),
    ("min_p", as_number, TINY, 1, "above 0 and at most 1, or None"),
    ("repetition_penalty", as_number, TINY, math.inf, "a number above 0; 1 is none"),
    ("presence_penalty", as_number, -2, 2, "from -2 to 2"),
    ("frequency_penalty", as_number, -2, 2, "from -2 to 2"),
    ("log_probabilities", as_whole, 0, math.inf, "a whole number, 0 or more, or None"),
    ("seed", as_whole, -(2**63), 2**64 - 1, "a whole number of 64 bits, such as 0"),
)


@dataclass(frozen=True)
class SamplingParameters:
    """Temperature 0 is greedy: always the likeliest token, regardless of the cuts.

    The logits pass through, in this order: penalties, temperature, top-k, top-p, min-p.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int | None = None  # the k likeliest
    top_p: float | None = None  # of those, the fewest whose probabilities reach p
    min_p: float | None = None  # and of those, none below min_p times the likeliest's probability
    repetition_penalty: float = 1.0  # over 1: tokens of prompt and answer become less likely
    presence_penalty: float = 0.0  # subtracted from the logits of tokens in the answer,
    frequency_penalty: float = 0.0  # and once per occurrence
    stop: tuple[str, ...] = ()  # the answer ends before the first of these strings,
    stop_tokens: tuple[int, ...] = ()  # before these tokens,
    ignore_end: bool = False  # and before the model's own end tokens, unless this is True
    log_probabilities: int | None = None  # of this many likeliest tokens; 0: only the drawn one
    seed: int = 0

    def __post_init__(self) -> None:
        """Validates everything here: an error within a pass would fail the whole batch."""
        for name, kind, lowest, highest, allowed in RANGES:
            self._set(name, kind, lowest, highest, allowed)
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        self._set_all("stop", stop, as_stop, "a string that is not empty, or a tuple of them")
        words = "a tuple of token numbers, such as (2,)"
        self._set_all("stop_tokens", self.stop_tokens, as_whole, words)
        if not is_flag(self.ignore_end):
            raise InputError(f"ignore_end is {self.ignore_end!r:.40}; it must be True or False")

    def _set(self, name: str, kind: Kind, lowest: float, highest: float, allowed: str) -> None:
        """Stores a value as a plain Python number, whatever its numeric type; None is allowed where
        it is the default."""
        given = getattr(self, name)
        if given is None and getattr(SamplingParameters, name) is None:
            return
        value = kind(given)
        if value is None or not lowest <= value <= highest:
            raise InputError(f"{name} is {given!r:.40}; it must be {allowed}")
        object.__setattr__(self, name, value)

    def _set_all(self, name: str, given: object, kind: Kind, allowed: str) -> None:
        try:
            values = () if given is None else tuple(map(kind, given))
        except TypeError:  # not a collection
            values = (None,)
        if None in values or isinstance(given, (str, bytes)):
            raise InputError(f"{name} is {given!r:.40}; it must be {allowed}")
        object.__setattr__(self, name, values)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1.0, 0.0, 0.0)
