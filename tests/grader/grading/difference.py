"""Describes the difference between two values, with or without showing the expected one.

    difference(got, want)    "got 3, expected 4"; None if equal
    miss(got, want)          "got 3: too small, by about 1.3 x", for an answer not to be revealed

Tensors, numbers, strings, and lists and dicts of them; floats are equal up to the rounding of their
dtype, or to a tolerance relative to the largest value expected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from minitrain.words import plural

# Relative rounding error that a different, equally correct order of operations may cause.
ROUNDING = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
SHOWN = 8  # elements of a tensor that a message shows in full


def difference(got: Any, want: Any, tol: float | None = None) -> str | None:
    """The difference, in words; None where there is none."""
    if got is None and want is not None:
        return f"got None, expected {show(want)}: is a `return` missing?"
    if isinstance(want, Tensor):
        return _tensor_difference(got, want, tol)
    if isinstance(want, (list, tuple)):
        return _sequence_difference(got, want, tol)
    if isinstance(want, dict):
        return _dict_difference(got, want, tol)
    if isinstance(want, Number) and not isinstance(want, bool):
        return _number_difference(got, want, tol)
    is_alike = type(got) is type(want) or (isinstance(got, str) and isinstance(want, str))
    return None if is_alike and got == want else _given(got, want)


def miss(got: Any, want: Any, tol: float | None = None) -> str:
    """Describes the difference without showing the expected value."""
    got = got.item() if isinstance(got, Tensor) and got.numel() == 1 else got
    if isinstance(want, bool):
        return f"got {show(got)}" + (
            "" if isinstance(got, bool) else ": True or False is asked for"
        )
    if isinstance(want, Number):
        is_number = isinstance(got, (int, float)) and not isinstance(got, bool)
        return f"got {show(got)}: " + (_way(got, want) if is_number else "a number is asked for")
    if isinstance(want, str):
        return f"got {show(got)}" + ("" if isinstance(got, str) else ": a word is asked for")
    if isinstance(want, (list, tuple)) and isinstance(got, (list, tuple)):
        if len(got) != len(want):
            return f"got {plural(len(got), 'item')}: {len(want)} are asked for"
        wrong = [i for i, pair in enumerate(zip(got, want)) if difference(*pair, tol)]
        return f"item {wrong[0]}: {miss(got[wrong[0]], want[wrong[0]], tol)}"
    return f"got {show(got)}"


def _way(got: float, want: float) -> str:
    """The direction and a factor, too coarse to infer the expected value."""
    way = "too large" if got > want else "too small"
    if not got * want > 0:
        return way
    factor = max(got / want, want / got)
    if factor < 1.1:
        return f"a little {way}"
    rough = f"{factor:.1f}" if factor < 2 else f"{float(f'{factor:.1g}'):,.0f}"
    return f"{way}, by about {rough} x"


def _tensor_difference(got: Any, want: Tensor, tol: float | None) -> str | None:
    if not isinstance(got, Tensor):
        return _given(got, want)
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"got a tensor of {_kind(got)}, expected {_kind(want)}"
    bad = ~_near(got, want, tol)
    if not bad.any():
        return None
    return _first_bad(got, want, bad)


def _near(got: Tensor, want: Tensor, tol: float | None) -> Tensor:
    """(shape) bool; errors are relative to the largest expected value, as rounding is."""
    tol = ROUNDING.get(want.dtype, 0.0) if tol is None else tol
    if tol == 0.0 or not want.is_floating_point():
        return (got == want) | (got.isnan() & want.isnan())
    got, want = got.double(), want.double()
    finite = want[want.isfinite()].abs()
    scale = finite.max() if finite.numel() else want.new_ones(())
    near = (got - want).abs() <= tol * scale.clamp(min=1e-30)
    return near | (got == want) | (got.isnan() & want.isnan())


def _first_bad(got: Tensor, want: Tensor, bad: Tensor) -> str:
    at = tuple(int(i) for i in bad.nonzero()[0])
    place = f"[{', '.join(map(str, at))}]" if at else "its only element"
    verb = "differs" if bad.numel() == 1 else "differ"
    text = f"{int(bad.sum())} of {plural(bad.numel(), 'element')} {verb}, first at {place}: "
    text += f"got {_number(got[at].item())}, expected {_number(want[at].item())}"
    if want.is_floating_point():
        worst = (got.double() - want.double())[bad].abs().max().item()
        text += f"; largest error {_number(worst)}"
    if want.numel() <= SHOWN and want.numel() > 1:
        text += f"\n  got      {show(got)}\n  expected {show(want)}"
    return text


def _sequence_difference(got: Any, want: list | tuple, tol: float | None) -> str | None:
    if not isinstance(got, (list, tuple)):
        return _given(got, want)
    if len(got) != len(want):
        items = plural(len(got), "item")
        return f"got {items}, expected {len(want)}: {show(got)} against {show(want)}"
    items = ((f"item {i}", *pair) for i, pair in enumerate(zip(got, want)))
    return _first_difference(items, tol)


def _dict_difference(got: Any, want: dict, tol: float | None) -> str | None:
    if not isinstance(got, dict):
        return _given(got, want)
    if set(got) != set(want):
        missing = sorted(map(str, set(want) - set(got)))
        extra = sorted(map(str, set(got) - set(want)))
        return f"missing {missing or 'nothing'}, not expected {extra or 'nothing'}"
    return _first_difference(((f"'{key}'", got[key], want[key]) for key in want), tol)


def _first_difference(parts: Iterable[tuple[str, Any, Any]], tol: float | None) -> str | None:
    """parts: (name of an element, actual value, expected value)."""
    for place, got, want in parts:
        problem = difference(got, want, tol)
        if problem:
            return f"{place}: {problem}"
    return None


def _number_difference(got: Any, want: Any, tol: float | None) -> str | None:
    if isinstance(got, Tensor) and got.numel() == 1:
        got = got.item()
    if not isinstance(got, (int, float)) or isinstance(got, bool):
        return _given(got, want)
    if tol is None:
        tol = 0.0 if isinstance(want, int) else ROUNDING[torch.float64]
    is_near = math.isfinite(want) and abs(got - want) <= tol * abs(want)  # nothing is close to inf
    if got == want or (got != got and want != want) or is_near:
        return None
    return f"got {_number(got)}, expected {_number(want)}"


def _given(got: Any, want: Any) -> str:
    return f"got {show(got)}, expected {show(want)}"


def _kind(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:.10g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.4g}"


def show(value: Any) -> str:
    """A value in one short line."""
    if isinstance(value, Tensor):
        if value.numel() > SHOWN:
            return f"a tensor of {_kind(value)}"
        flat = [_number(v) for v in value.flatten().tolist()]
        return f"[{', '.join(flat)}] ({_kind(value)})"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(show(v) for v in value[:SHOWN]) + (", …" if len(value) > SHOWN else "")
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    text = _number(value) if isinstance(value, float) else repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
