"""Verdicts that look further before they name a cause: at one call alone, at the check above.

    each(cases, run, right)              right(case, call) of calls in a row, made by run(cases)
    in_a_row(right, cases)               right(cases), of all of them at once
    with below(self.test_value, submission): …   what fails may fail in the check above
    with as_above(earlier): …            what fails here as `earlier()` does
    with as_above(self.test_value, submission): …       the same of a check, which is asked once
    with told_above(): …                 it does: both ask the same, and its own words say it best

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
RIGHT_ALONE = f"each of these calls is right alone: {KEPT}"

Case = TypeVar("Case")
Call = TypeVar("Call")
Result = TypeVar("Result")

_found: WeakKeyDictionary[Attempt, dict[str, CheckFailed | None]] = WeakKeyDictionary()


def each(
    cases: Sequence[Case],
    run: Callable[[Sequence[Case]], Sequence[Call]],
    right: Callable[[Case, Call], object],
    what: str = "call",
    words: str = KEPT,
) -> Sequence[Call]:
    """Judges each call; one that is wrong in the row, and right where it is alone, is told so.

    what: a case's name; words: what follows from it.
    """
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
            seen = f"{what} {number} of {len(cases)} in a row is wrong, and the same {what} alone"
            raise CheckFailed(f"{seen} is right: {words}") from None
    return calls


def in_a_row(
    right: Callable[[Sequence[Case]], Result],
    cases: Sequence[Case],
    words: str = RIGHT_ALONE,
    but: Sequence[str] = (),
) -> Result:
    """right(cases); where each of them is right alone, that stands in the place of any other hint.

    but: what names the cause already.
    """
    try:
        return right(cases)
    except CheckFailed as failure:
        has_no_result = isinstance(failure, SubmissionFailed)
        takes_long = has_no_result and failure.kind == "timeout"  # and would again
        is_told = any(cause in str(failure) for cause in but)
        if is_told or takes_long or not all(is_right(right, [case]) for case in cases):
            raise
        texts = (str(failure), failure.secretive)
        seen = texts if has_no_result else (text.splitlines()[0] for text in texts)
        raise CheckFailed(*(f"{text}\n{words}" for text in seen)) from None


def is_right(verdict: Callable[..., object], *given: object) -> bool:
    """True where verdict(*given) passes."""
    try:
        verdict(*given)
    except CheckFailed:
        return False
    return True


@contextmanager
def below(above: Callable[[Attempt], object], submission: Attempt) -> Iterator[None]:
    """Where what fails in here names no cause, the check above is asked whether it fails too."""
    try:
        yield
    except SubmissionFailed:
        raise
    except CheckFailed as failure:
        if cause_of(str(failure)) is None and (found := _failure_of(above, submission)):
            raise _in_a_line(found) from None
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
def told_above(
    earlier: Callable[..., object] | None = None, submission: Attempt | None = None
) -> Iterator[None]:
    """What a check above has judged in the same way is told in one line; with `earlier`, where
    that fails too."""
    try:
        yield
    except SubmissionFailed:
        raise
    except CheckFailed as failure:
        if earlier is None or _failure_of(earlier, submission):
            raise _in_a_line(failure) from None
        raise


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


def _in_a_line(failure: CheckFailed) -> CheckFailed:
    """Its cause, or what was seen."""
    texts = (str(failure), failure.secretive)
    lines = (cause_of(text) or text.splitlines()[0] for text in texts)
    return CheckFailed(*(ABOVE + line.removeprefix(ABOVE) for line in lines))


def cause_of(text: str) -> str | None:
    """The hint that `expect.equal` puts below what it compares; None where there is none."""
    rest = text.splitlines()[1:]
    return rest[-1] if rest and not rest[-1].startswith(" ") else None
