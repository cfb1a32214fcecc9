"""Verdicts that look further before they name a cause: at one call alone, at the check above.

    each(cases, run, right)              right(case, call) of calls in a row, made by run(cases)
    with below(self.test_value, submission): …   what fails may fail in the check above
    with as_above(earlier): …            what fails here as `earlier()` does
    with as_above(self.test_value, submission): …       the same of a check, which is asked once
    with told_above(): …                 it does: both ask the same

A check is given calls in a row, and some fail for what an earlier one left behind; a check of
gradients fails where the values are wrong. Words about the call, or about gradients, would mislead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

from minitrain.lab.failures import CheckFailed, SubmissionFailed
from minitrain.lab.grading.attempt import Attempt

__tracebackhide__ = True  # pytest shows the line of the check, not one of these

ABOVE = "as above: "
KEPT = "nothing may be kept from one call to the next, nor read before it is written"

Case = TypeVar("Case")
Call = TypeVar("Call")

_found: WeakKeyDictionary[Attempt, dict[str, CheckFailed | None]] = WeakKeyDictionary()


def each(
    cases: Sequence[Case],
    run: Callable[[Sequence[Case]], Sequence[Call]],
    right: Callable[[Case, Call], object],
) -> Sequence[Call]:
    """Judges each call; one that is wrong in the row, and right where it is alone, is told so."""
    calls = run(cases)
    for number, (case, call) in enumerate(zip(cases, calls), 1):
        try:
            right(case, call)
        except CheckFailed as failure:
            if len(cases) == 1:
                raise
            try:
                right(case, run([case])[0])
            except CheckFailed:
                raise failure from None
            words = f"call {number} of {len(cases)} in a row is wrong, and the same call alone is"
            raise CheckFailed(f"{words} right: {KEPT}") from None
    return calls


@contextmanager
def below(above: Callable[[Attempt], object], submission: Attempt) -> Iterator[None]:
    """Where what fails in here names no cause, the check above is asked whether it fails too."""
    try:
        yield
    except SubmissionFailed:
        raise
    except CheckFailed as failure:
        if cause_of(failure) is None and (found := _failure_of(above, submission)):
            raise CheckFailed(ABOVE + _in_a_line(found).removeprefix(ABOVE)) from None
        raise


@contextmanager
def as_above(earlier: Callable[..., object], submission: Attempt | None = None) -> Iterator[None]:
    """Where something fails in here, and also `earlier()`, which an earlier check asks for, the
    words are those of `earlier()`: this check's own title is not the cause."""
    try:
        yield
    except SubmissionFailed:
        raise
    except CheckFailed:
        if found := _failure_of(earlier, submission):
            words = (str(found), found.secretive)
            raise CheckFailed(*(ABOVE + text.removeprefix(ABOVE) for text in words)) from None
        raise


@contextmanager
def told_above() -> Iterator[None]:
    """Of what a check above has judged in the same way: it is told in one line."""
    try:
        yield
    except SubmissionFailed:
        raise
    except CheckFailed as failure:
        raise CheckFailed(ABOVE + _in_a_line(failure)) from None


def _failure_of(earlier: Callable[..., object], submission: Attempt | None) -> CheckFailed | None:
    """What `earlier` says, which is asked once a submission; nothing where it passes, or has no
    result, which says nothing of what a run gives."""
    if submission is None:
        return _asked(earlier)
    found = _found.setdefault(submission, {})
    if earlier.__qualname__ not in found:
        found[earlier.__qualname__] = _asked(partial(earlier, submission))
    return found[earlier.__qualname__]


def _asked(verdict: Callable[[], object]) -> CheckFailed | None:
    try:
        verdict()
    except SubmissionFailed:
        return None
    except CheckFailed as failure:
        return failure.with_traceback(None)
    return None


def _in_a_line(failure: CheckFailed) -> str:
    return cause_of(failure) or str(failure).splitlines()[0]


def cause_of(failure: CheckFailed) -> str | None:
    """The hint that `expect.equal` puts below what it compares; None where there is none."""
    rest = str(failure).splitlines()[1:]
    return rest[-1] if rest and not rest[-1].startswith(" ") else None
