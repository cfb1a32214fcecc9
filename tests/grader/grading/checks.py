"""Base classes of a lab's checks (`tests/labs/test_eXX_….py`).

    class TestRingAllReduce(Exercise):
        "Ring all-reduce"
        name = "ring_all_reduce"                                # the learner's function or class
        reference = "minitrain.parallel.collectives.algorithms:ring_all_reduce"
        hidden = ["minitrain/parallel/collectives/algorithms.py"]  # not visible while it runs

        @check(points=2, title="equals the sum over ranks")
        def test_sum(self, submission):
            out = submission.launch(probe, x, ranks=3)          # probe(group, f, x) on each rank
            expect.equal(out[0], sum(x), hints=[(sum(x) / 3, "this is the average")])

The same classes run in three places: `lab.grade(f)`, `python -m minitrain grade`, and pytest, where
`submission`, `table`, `value` and `records` are fixtures. A failure is a `CheckFailed` with an
instructive message; the verdict is always computed here, outside the sandbox, from the returned
data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar

from minitrain.lab.failures import CheckFailed


@dataclass(frozen=True)
class Check:
    """One check of an exercise: `function(self, …)` passes unless it raises CheckFailed."""

    name: str
    title: str
    points: float
    function: Callable[..., None]


def check(points: float, title: str = "") -> Callable[[FunctionType], FunctionType]:
    """Marks a method as a check worth `points`; without a title its docstring is the title."""
    assert points > 0, f"a check is worth something: {points}"

    def mark(function: FunctionType) -> FunctionType:
        words = title or (function.__doc__ or function.__name__).strip().splitlines()[0]
        function.check = Check(function.__name__, words, points, function)  # type: ignore[attr-defined]
        return function

    return mark


def checks_of(graded: type[Graded]) -> list[Check]:
    """The checks of a class, in source order."""
    found: dict[str, Check] = {}
    for base in reversed(graded.__mro__):
        for name, value in vars(base).items():
            mark = getattr(value, "check", None)
            if isinstance(mark, Check):
                found[name] = mark
    return list(found.values())


class Graded:
    """An item that earns points: `name` is the learner's object, the docstring its title."""

    name: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    title: ClassVar[str] = ""
    max_points: ClassVar[float] = 0.0

    def __init_subclass__(cls) -> None:
        cls.title = (cls.__doc__ or cls.name).strip().splitlines()[0]
        cls.max_points = sum(item.points for item in checks_of(cls))


class Exercise(Graded):
    """A function or class; its checks take `submission` (see `attempt.py`)."""

    kind = "exercise"
    reference: ClassVar[str] = ""  # "module:function"; lab.grade returns it until theirs passes
    hidden: ClassVar[Sequence[str]] = ()  # files of the package hidden from the sandbox


class Recorded(Graded):
    """A table that the learner's run recorded: it counts once all that it `rests_on` is earned."""

    rests_on: ClassVar[Sequence[str]] = ()  # names of earlier exercises and experiments


class Experiment(Recorded):
    """A table that `lab.experiment(name, table)` recorded; checks take `table` and `records`."""

    kind = "experiment"


class Question(Recorded):
    """An `lab.answer(name, value)`; its checks take `value` and `records` (tables by name).

    A message says that a number is too large and by about how much, not which one is expected.
    """

    kind = "question"
    tells: ClassVar[bool] = False  # True: messages may show the expected value, as in an exercise


@dataclass(frozen=True)
class Reveal:
    """The numbers shown beside a guess, kept out of the notebook: `REVEALS = {"rounds":
    Reveal(…)}`.

    source: whether the number is measured, computed or emulated. formula: the theoretical value,
    from the keyword arguments of `lab.reveal(name, number, ranks=8)`.
    """

    source: str
    note: str = ""
    formula: Callable[..., float] | None = None


class Row(dict):
    """A recorded row; a missing column is a CheckFailed for the learner, not a KeyError."""

    def __missing__(self, column: Any) -> Any:
        columns = ", ".join(map(str, self)) or "no columns"
        raise CheckFailed(f"the recorded table has no column '{column}': it has {columns}")
