"""What a rank sent is read off the relay's notes, call by call, whatever its own trace says."""

from __future__ import annotations

import pytest
import torch

from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading import relayed
from minitrain.lab.grading.attempt import Attempt
from minitrain.lab.sandbox.loader import Cell, Solution
from minitrain.lab.sandbox.relay import Note


def mark(label):
    return Note("mark", label=label)


FIRST, SECOND = Note("all_reduce", 0, 8, 8, (0, 1)), Note("send", 1, 4, 4, (0, 1), 1)
ASIDE = Note("barrier", 2, 0, 0, (0, 1))
NOTES = [
    *(mark("call"), FIRST, mark(("B", 3)), Note("wait", 0), SECOND, mark(("over", "call"))),
    *(mark("call"), mark(("over", "call"))),
]


def test_a_run_goes_from_its_mark_to_its_end():
    one, two = relayed.runs(NOTES, "call", 2)
    assert relayed.operations(one) == [FIRST, SECOND] and two == []
    assert relayed.waits(one) == [True, False] and relayed.labels(one) == [("B", 3)]
    ((label, before),) = relayed.before_marks(one)
    assert label == ("B", 3) and relayed.operations(before) == [FIRST]
    assert relayed.waits(before) == [False], "it was waited for later"


def test_what_is_sent_outside_of_all_runs_is_told():
    assert relayed.runs([ASIDE, *NOTES], "call", 2), "before the first it is the probe's own"
    with pytest.raises(CheckFailed, match=r"barrier of 0 bytes.* when no call of it was under way"):
        relayed.runs([*NOTES, ASIDE], "call", 2)
    beside = [mark("later"), ASIDE, mark(("over", "later"))]
    assert relayed.runs([*NOTES, *beside], "call", 2, ["later"])


def test_a_mark_too_many_or_none_is_told():
    over = mark(("over", "call"))
    for wrong in ([*NOTES, mark("call")], NOTES[1:], [NOTES[0], over, *NOTES[1:]]):
        with pytest.raises(CheckFailed, match="the probe set 4: the marks are the grader's"):
            relayed.runs(wrong, "call", 2)


BENT = """
import torch

OPS = []

class Late(torch.Tensor):
    @classmethod
    def __torch_function__(cls, f, types, args=(), kwargs=None):
        if f.__name__ == "cpu":
            group, true = OPS
            group.trace.ops[:] = true
        return super().__torch_function__(f, types, args, kwargs or {})

def f(group, x):
    out = group.all_reduce(x.clone())
    OPS[:] = group, list(group.trace.ops)
    group.trace.ops.clear()
    return out.as_subclass(Late)
"""


def called(group, f, x):
    group.trace.mark("call")
    out = f(group, x)
    group.trace.mark(("over", "call"))
    return {"out": out, "told": len(group.trace.ops)}


def test_a_trace_that_is_bent_for_a_while_deceives_the_rank_alone(sandbox):
    attempt = Attempt(sandbox, Solution((Cell("cell", BENT, True),)), "f")
    results = attempt.launch(called, torch.ones(3), ranks=2)
    for result, notes in zip(results, attempt.notes):
        (run,) = relayed.runs(notes, "call", 1)
        assert result["told"] == 0 and [op.kind for op in relayed.operations(run)] == ["all_reduce"]
