"""The one exception for errors a user can fix, and four common cases: an unknown name, a length
that does not divide, a number that is not whole, and one string where a list is needed."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path


class InputError(ValueError):
    """Says in one sentence what was given, what is needed and what to try.

    The command line prints it without a traceback and exits with 2.
    """


def unknown_name(
    kind: str, given: str, known: Iterable[str], meant: str | None = None
) -> InputError:
    """The error for a name not in `known`, suggesting `meant` or the nearest one."""
    names = sorted(known)
    near = [meant] if meant else get_close_matches(str(given), names, n=1, cutoff=0.5)
    advice = f"did you mean '{near[0]}'? " if near else ""
    return InputError(f"no {kind} is called '{given}': {advice}known are {', '.join(names)}")


def check_list(what: str, given: Iterable[str]) -> None:
    """InputError for a single string, which would be iterated by character."""
    if isinstance(given, (str, bytes, Path)):
        raise InputError(f"{what} are {given!r:.40}: give a list of them, such as [{what[:-1]}]")


def check_whole(name: str, value: object) -> None:
    """InputError unless `value` is an integer, of Python or numpy, and at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InputError(f"{name} is {value!r}; it must be a whole number, 1 or more")


def divide(what: str, length: int, parts: int, kind: str = "ranks") -> int:
    """length / parts: `divide("experts", 8, 4) == 2`; else an InputError that names divisors that
    work."""
    if length % parts == 0:
        return length // parts
    lower = length - length % parts
    lengths = [n for n in (lower, lower + parts) if n]
    fitting = [n for n in range(2, length + 1) if length % n == 0]
    counts = [*[n for n in fitting if n < parts][-1:], *[n for n in fitting if n > parts][:1]]
    others = f", or {' or '.join(map(str, counts))} {kind}" if counts else ""
    raise InputError(
        f"{length} {what} cannot be split over {parts} {kind}: "
        f"use {' or '.join(map(str, lengths))}{others}"
    )
