"""Verdicts that rule out other causes first: by testing one call alone, or an earlier check.

    each(cases, run, right)              right(case, call) for consecutive calls, made by run(cases)
    in_a_row(right, cases)               right(cases), of all of them at once
    with below(self.test_value, submission): …   a failure may come from the earlier check
    with as_above(earlier): …            a failure that `earlier()` shares
    with as_above(self.test_value, submission): …       the same for a check, which is run once
    with told_above(): …                 both test the same: report it briefly

In consecutive calls some fail because of state left by an earlier one, and a check of gradients
fails where the values are wrong. A message about that call, or about gradients, would mislead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

from minitrain.lab.failures import CheckFailed, SubmissionFailed
from minitrain.lab.grading.attempt import Attempt

__tracebackhide__ = True  # pytest shows the line of the check instead

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
    """Judges each call; reports one that is wrong in sequence but right alone.

    what: a case's name; words: the conclusion.
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
    """right(cases); if each case is right alone, that replaces any other hint.

    but: hints that already name the cause.
    """
    try:
        return right(cases)
    except CheckFailed as failure:
        has_no_result = isinstance(failure, SubmissionFailed)
        takes_long = has_no_result and failure.kind == "timeout"  # and would do so again
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
    """If a failure in the block names no cause, tests whether the earlier check fails too."""
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
    """If the block and `earlier()`, from an earlier check, both fail, reports the message of
    `earlier()`: this check's topic is not the cause."""
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
    """Shortens to one line a failure that an earlier check reported as well; with `earlier`, only
    if that fails too."""
    try:
        yield
    except SubmissionFailed:
        raise
    except CheckFailed as failure:
        if earlier is None or _failure_of(earlier, submission):
            raise _in_a_line(failure) from None
        raise


def _failure_of(earlier: Callable[..., object], submission: Attempt | None) -> CheckFailed | None:
    """The failure of `earlier`, run once per submission; None where it passes, or gives no result,
    which proves nothing."""
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
    """The failure's cause, else the observation, in one line."""
    texts = (str(failure), failure.secretive)
    lines = (cause_of(text) or text.splitlines()[0] for text in texts)
    return CheckFailed(*(ABOVE + line.removeprefix(ABOVE) for line in lines))


def cause_of(text: str) -> str | None:
    """The hint that `expect.equal` puts below the comparison; None where there is none."""
    rest = text.splitlines()[1:]
    return rest[-1] if rest and not rest[-1].startswith(" ") else None
