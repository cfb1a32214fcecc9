"""Likely mistakes, made by textual edits of an exercise's reference.

MISTAKES = [(("far**2", "far"), "far is squared"), …]        each with its message
hints(reference, MISTAKES, call)     (call(mistaken), message) of each, for `expect`
cause(got, reference, MISTAKES, call)    messages of those that reproduce all of `got`, or ""
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from inspect import getsource
from typing import Any

from minitrain.lab.grading.difference import difference

Mistake = tuple[tuple[str, ...], str]  # pieces and replacements, alternating; message


@cache
def variant(reference: str, *edits: str) -> Any:
    """The reference, "module:name", with each piece of its source replaced by the next one."""
    place, _, name = reference.partition(":")
    module = import_module(place)
    source = getsource(getattr(module, name))
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        assert source.count(old) == 1, (
            f"{reference} has `{old}` {source.count(old)} times, not once"
        )
        source = source.replace(old, new)
    names = dict(vars(module))
    exec(source, names)
    return names[name]


def hints(
    reference: str, mistakes: Iterable[Mistake], call: Callable[[Any], Any]
) -> Iterator[tuple[Any, str]]:
    """The result of `call(mistaken)` and the mistake's message; skips mistakes that raise."""
    for edits, words in mistakes:
        try:
            yield call(variant(reference, *edits)), words
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            continue


def cause(
    got: Any,
    reference: str,
    mistakes: Iterable[Mistake],
    call: Callable[[Any], Any],
    tol: float | None = None,
) -> str:
    """The joined messages of the mistakes that reproduce all of `got`; "" if none does."""
    found = hints(reference, mistakes, call)
    words = [text for wrong, text in found if difference(got, wrong, tol) is None]
    return ", or ".join(dict.fromkeys(words))
