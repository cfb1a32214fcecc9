"""The one exception for what a person can mend: a wrong name, a broken file, too many ranks."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Says in one sentence what was given, what is needed and what to try.

    The command line prints it without a traceback and exits with 2.
    """


def unknown_name(
    kind: str, given: str, known: Iterable[str], meant: str | None = None
) -> InputError:
    """The error for a name that is none of `known`, with `meant` or the nearest one suggested."""
    names = sorted(known)
    near = [meant] if meant else get_close_matches(str(given), names, n=1, cutoff=0.5)
    advice = f"did you mean '{near[0]}'? " if near else ""
    return InputError(f"no {kind} is called '{given}': {advice}known are {', '.join(names)}")
