"""Assertions of the checks; each failure gives the actual and the expected value, and the reason.

    expect.equal(got, want, hints=[(wrong, "words")])   equal up to the rounding of the dtype
    expect.close(got, want, tol=0.05)                    within a relative tolerance
    expect.identical(got, want)                          the same bits
    expect.that(condition, "words")
    expect.left_alone(calls, given, ["x"])               inputs unchanged, results not aliased
    expect.first([(is_seen, "words"), …])                the words of the first cause that applies
    expect.among(got, words)                             one of these words, listed in the message
    expect.recorded(records, "overlap")                  the table of an experiment
    expect.rows(table, "way", "ranks")["ring", 8]        its row for that way and number of ranks
    with expect.because({"deadlock": "words"}): …        the likely cause of a run without a result
    with expect.though("every gradient is right"): …     the message starts with what is right
    expect.in_a_row(right, cases)                        whether calls are wrong only in a sequence

A hint is the result of a likely mistake: if `got` equals it, its words end the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor

from minitrain.lab.failures import CheckFailed, SubmissionFailed
from minitrain.lab.grading.difference import difference, miss, show

__tracebackhide__ = True  # pytest shows the line of the check instead

Hints = Iterable[tuple[Any, str]]
Case = TypeVar("Case")
Result = TypeVar("Result")

HANGS = ("deadlock", "mismatch", "timeout")  # kinds of failure in which a rank waits forever
INTO_A_TENSOR = (
    "write into a tensor of your own (`a = a + b` makes one, `a += b` writes into a; where a is a "
    "slice or another view, into what it is a view of)"
)
RIGHT_ALONE = (
    "each of these calls is right alone: nothing may be kept from one call to the next, nor read "
    "before it is written"
)
ROUNDED = 1e-4  # a smaller tolerance only covers rounding, and no message mentions it


def that(condition: object, message: str) -> None:
    """Fails with `message` where the condition does not hold."""
    if not condition:
        raise CheckFailed(message)


def equal(
    got: Any, want: Any, tol: float | None = None, hints: Hints = (), what: str = "the result"
) -> None:
    """Tensors, numbers, strings, lists and dicts of them; floats up to `tol` (default:
    rounding)."""
    _compare(got, want, tol, hints, what)


def close(
    got: Any, want: Any, tol: float = 0.01, hints: Hints = (), what: str = "the result"
) -> None:
    """Like `equal`, with a relative tolerance that the message states: 0.01 is one percent."""
    within = f" (within {100 * tol:.3g}%)" if tol >= ROUNDED else ""
    _compare(got, want, tol, hints, what + within)


def identical(got: Any, want: Any, hints: Hints = (), what: str = "the result") -> None:
    """Bitwise equality: a copy, or the same additions in the same order."""
    _compare(got, want, 0.0, hints, f"{what} (bit for bit)")


def left_alone(
    calls: Sequence[Mapping[str, Any]],
    given: Sequence[Sequence[Any]],
    names: Sequence[str],
    own: bool = True,
    what: str = "",
) -> None:
    """Checks that consecutive calls (probes/in_turn.py) changed no argument and no earlier result.

    names: of the arguments; own: results must share no memory with them.
    """
    where = f"{what}: " if what else ""
    for call, arguments in zip(calls, given):
        for name, now, before in zip(names, call["given"], arguments):
            that(
                difference(now, before, 0.0) is None,
                f"{where}the call changed its input `{name}`, which is the caller's: "
                + (INTO_A_TENSOR if isinstance(before, Tensor) else "change a copy of it"),
            )
        that(
            not (own and call["shares"]),
            f"{where}the result shares its memory with an input, so a change of one is a change "
            "of the other: return a tensor of its own (.clone())",
        )
    for number, call in enumerate(calls, 1):
        that(
            difference(call["later"], call["out"], 0.0) is None,
            f"{where}what call {number} had returned was changed by a later call: something is "
            "kept between calls and written again; make it anew in each call",
        )


def first(causes: Iterable[tuple[object, str]]) -> str:
    """The words of the first true condition; "" where none holds."""
    return next((words for holds, words in causes if holds), "")


def among(got: Any, words: Iterable[str]) -> None:
    """Fails where `got` is none of these words; the correct answer may be any of them."""
    words = list(words)
    that(got in words, f"got {show(got)}: the answer is one of {', '.join(map(repr, words))}")


def recorded(records: Mapping[str, list[Any]], name: str) -> list[Any]:
    """The experiment's table that an answer refers to; fails where none is recorded."""
    that(records.get(name), f"record the experiment '{name}' first: the answer is read off it")
    return records[name]


class _Rows(dict[Any, Any]):
    def __missing__(self, key: Any) -> Any:
        raise CheckFailed(f"there is no row of {show(key)}: record the table as the lab has it")


def rows(table: Sequence[Any], *columns: str) -> dict[Any, Any]:
    """Its rows keyed by the values of the columns, as a tuple if there are several."""
    keys = [tuple(row[column] for column in columns) for row in table]
    return _Rows(zip(keys if len(columns) > 1 else (key for (key,) in keys), table))


@contextmanager
def because(causes: Mapping[str | tuple[str, ...], str]) -> Iterator[None]:
    """Adds the likely cause, the first that fits, where a submission gives no result.

    A key is a kind of `SubmissionFailed`, or a part of its text, or several of them.
    """
    try:
        yield
    except SubmissionFailed as failure:
        for signs, words in causes.items():
            signs = (signs,) if isinstance(signs, str) else signs
            if failure.kind in signs or any(sign in str(failure) for sign in signs):
                raise SubmissionFailed(failure.kind, f"{failure}\n{words}") from None
        raise


@contextmanager
def though(right: str) -> Iterator[None]:
    """Prefixes a failure in the block with what was found right before: "…, but rank 0 sent"."""
    try:
        yield
    except SubmissionFailed:
        raise
    except CheckFailed as failure:
        words = (f"{right}, but {text}" for text in (failure, failure.secretive))
        raise CheckFailed(*words) from None


def in_a_row(
    right: Callable[[Sequence[Case]], Result],
    cases: Sequence[Case],
    words: str = RIGHT_ALONE,
) -> Result:
    """right(cases); if each case is right alone, that replaces any other hint."""
    try:
        return right(cases)
    except CheckFailed as failure:
        has_no_result = isinstance(failure, SubmissionFailed)
        takes_long = has_no_result and failure.kind == "timeout"  # and would do so again
        if takes_long or not all(_is_right(right, [case]) for case in cases):
            raise
        texts = (str(failure), failure.secretive)
        seen = texts if has_no_result else (text.splitlines()[0] for text in texts)
        raise CheckFailed(*(f"{text}\n{words}" for text in seen)) from None


def _is_right(verdict: Callable[..., object], *given: object) -> bool:
    try:
        verdict(*given)
    except CheckFailed:
        return False
    return True


def _compare(got: Any, want: Any, tol: float | None, hints: Hints, what: str) -> None:
    problem = difference(got, want, tol)
    if problem is None:
        return
    hint = [text for wrong, text in hints if difference(got, wrong, tol) is None][:1]
    told = "\n".join([f"{what}: {problem}", *hint])
    raise CheckFailed(told, "\n".join([f"{what}: {miss(got, want, tol)}", *hint]))
