"""A condition that is read twice: as PromQL by Prometheus, as numbers by Python. No threshold is
written down twice.

    latest("compute_seconds") > 1.1 * median_rank(latest("compute_seconds"))
    str(…)          minitrain_compute_seconds > on (run) group_left () 1.1 * quantile by (run) …
    ….value(look)   {3: 0.31}        the ranks for which it holds, as a vector in PromQL

Semantics are Prometheus's: a comparison keeps what is true; a rank that one side lacks falls out;
a window [1m] has the scrapes of the last minute. A test runs promtool over the same series.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from minitrain.errors import InputError
from minitrain.monitoring.metrics import METRICS, exposed_name

Vector = dict[int, float]  # by rank
Value = Vector | float
UNITS = {"s": 1, "m": 60, "h": 3600}


class Look(Protocol):
    """The scrapes of one run, up to a moment."""

    now: float

    def latest(self, name: str) -> Vector: ...
    def window(self, name: str, seconds: float) -> Mapping[int, np.ndarray]: ...


def seconds_of(text: str) -> float:
    """ "5m" -> 300.0."""
    try:
        return float(text[:-1]) * UNITS[text[-1:]]
    except (ValueError, KeyError):
        raise InputError(f"invalid duration {text!r}: use one such as 30s, 5m or 1h") from None


@dataclass(frozen=True, eq=False)
class Expression:
    """`promql` as text, `read` as numbers."""

    promql: str
    read: Callable[[Look], Value]
    is_of_run: bool = False  # one value for the run, not one a rank
    is_joined: bool = False  # by an operator: in brackets, where it is a part of another

    def value(self, look: Look) -> Value:
        return self.read(look)

    def __str__(self) -> str:
        return self.promql

    def __add__(self, other: Expression | float) -> Expression:
        return _joined(self, "+", other, lambda a, b: a + b)

    def __sub__(self, other: Expression | float) -> Expression:
        return _joined(self, "-", other, lambda a, b: a - b)

    def __mul__(self, other: Expression | float) -> Expression:
        return _joined(self, "*", other, lambda a, b: a * b)

    def __truediv__(self, other: Expression | float) -> Expression:
        return _joined(self, "/", other, _divided)

    def __gt__(self, other: Expression | float) -> Expression:
        return _joined(self, ">", other, lambda a, b: a > b, filters=True)

    def __lt__(self, other: Expression | float) -> Expression:
        return _joined(self, "<", other, lambda a, b: a < b, filters=True)

    def equals(self, other: Expression | float) -> Expression:
        return _joined(self, "==", other, lambda a, b: a == b, filters=True)

    def differs(self, other: Expression | float) -> Expression:
        return _joined(self, "!=", other, lambda a, b: a != b, filters=True)

    def __or__(self, other: Expression) -> Expression:
        def read(look: Look) -> Value:
            mine, theirs = self.value(look), other.value(look)
            assert isinstance(mine, dict) and isinstance(theirs, dict), "or is for vectors"
            return theirs | mine

        return Expression(f"{_inner(self)} or {_inner(other)}", read, is_joined=True)


def latest(name: str) -> Expression:
    """The newest value of each rank."""
    _known(name)
    return Expression(exposed_name(name), lambda look: look.latest(name))


def median_over(name: str, window: str) -> Expression:
    """The median of the scrapes of the last `window`, for each rank."""
    return _over(name, window, "quantile_over_time(0.5, {})", np.median)


def mean_over(name: str, window: str) -> Expression:
    return _over(name, window, "avg_over_time({})", np.mean)


def growth_over(name: str, window: str) -> Expression:
    """Increase of a counter over the scrapes of the window."""
    return _over(name, window, "max_over_time({0}) - min_over_time({0})", np.ptp)


def median_rank(each: Expression) -> Expression:
    """The median over the ranks of a run."""

    def read(look: Look) -> float:
        value = each.value(look)
        assert isinstance(value, dict), "a median over ranks needs a value for each"
        return float(np.median(list(value.values()))) if value else np.nan

    return Expression(f"quantile by (run) (0.5, {each})", read, is_of_run=True)


def at_least(each: Expression, lowest: float) -> Expression:
    def read(look: Look) -> Value:
        value = each.value(look)
        assert isinstance(value, dict), "of each rank"
        return {rank: max(number, lowest) for rank, number in value.items()}

    return Expression(f"clamp_min({each}, {lowest:g})", read)


def now() -> Expression:
    return Expression("time()", lambda look: look.now)


def _known(name: str) -> None:
    if name not in METRICS:
        raise InputError(f"no metric is called '{name}': known are {', '.join(METRICS)}")


def _over(name: str, window: str, form: str, reduce: Callable[[np.ndarray], float]) -> Expression:
    _known(name)
    seconds = seconds_of(window)

    def read(look: Look) -> Vector:
        found = look.window(name, seconds)
        return {rank: float(reduce(values)) for rank, values in found.items() if len(values)}

    text = form.format(f"{exposed_name(name)}[{window}]")
    return Expression(text, read, is_joined=" - " in text)


def _divided(a: float, b: float) -> float:
    return a / b if b else np.nan if not a else np.copysign(np.inf, a)


def _joined(
    left: Expression,
    sign: str,
    right: Expression | float,
    compute: Callable[[float, float], float | bool],
    filters: bool = False,
) -> Expression:
    """PromQL's binary operators between vectors, the value of a run and numbers."""

    def read(look: Look) -> Value:
        a = left.value(look)
        b = right.value(look) if isinstance(right, Expression) else float(right)
        if not isinstance(a, dict) and not isinstance(b, dict):
            assert not filters, "a comparison needs a vector"
            return compute(a, b)
        ranks = [r for r in (a if isinstance(a, dict) else b) if not isinstance(b, dict) or r in b]
        found = {}
        for rank in ranks:
            one = a[rank] if isinstance(a, dict) else a
            other = b[rank] if isinstance(b, dict) else b
            made = compute(one, other)
            if not filters:
                found[rank] = made
            elif made:
                found[rank] = one
        return found

    of_run = isinstance(right, Expression) and right.is_of_run and not left.is_of_run
    match = " on (run) group_left ()" if of_run else ""
    is_of_run = left.is_of_run and (not isinstance(right, Expression) or right.is_of_run)
    shown = _inner(right) if isinstance(right, Expression) else f"{right:g}"
    return Expression(f"{_inner(left)} {sign}{match} {shown}", read, is_of_run, is_joined=True)


def _inner(part: Expression) -> str:
    return f"({part})" if part.is_joined else str(part)
