"""The relay carries what torch's process groups carry, and its notes cannot be talked round."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minitrain.lab.grading.attempt import Attempt
from minitrain.lab.sandbox.loader import Cell, Solution
from minitrain.lab.sandbox.relay import SPLITS, Note, differs
from minitrain.measure.traffic import Op, Trace

EVERYTHING = """
import torch

def f(group, x):
    n, me = group.size, group.rank
    out = {op: group.all_reduce(x.clone(), op=op) for op in ("sum", "max", "min")}
    out["broadcast"] = group.broadcast(x.clone(), root=1)
    out["scattered"] = group.reduce_scatter(x.new_empty(2), x.clone())
    out["gathered"] = group.all_gather(x.new_empty(n * x.numel()), x)
    rows = torch.arange(n * (n - 1) // 2 + n).to(x.dtype).view(-1, 1) + 10 * me
    sizes = [to + 1 for to in range(n)]
    out["exchanged"] = group.all_to_all(x.new_empty(n * (me + 1), 1), rows, [me + 1] * n, sizes)
    group.barrier()
    work = group.all_reduce(x.T.clone().T, async_op=True)
    while not work.is_completed():
        pass
    out["later"] = work.wait()
    half = group.split(me % 2)
    out["half"] = half.all_reduce(x.clone()) if half.size > 1 else x
    out["shifted"] = group.exchange(x, (me + 1) % n, torch.empty_like(x), (me - 1) % n)
    out["empty"] = group.all_reduce(x[:0].clone())
    return out
"""


def attempt(sandbox, source: str) -> Attempt:
    return Attempt(sandbox, Solution((Cell("cell", source, True),)), "f")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("fabric", [None, "ethernet-25g"])
def test_it_carries_every_operation(sandbox, dtype, fabric):
    x = torch.arange(6).to(dtype) - 2
    given = [x + 3 * rank for rank in range(3)]
    results = attempt(sandbox, EVERYTHING).launch(
        lambda group, f, given: f(group, given[group.rank]), given, ranks=3, fabric=fabric
    )
    total = sum(given)
    for rank, got in enumerate(results):
        assert got["sum"].equal(total) and got["later"].equal(total)
        assert got["max"].equal(given[2]) and got["min"].equal(given[0])
        assert got["broadcast"].equal(given[1])
        assert got["scattered"].equal(total[2 * rank : 2 * rank + 2])
        assert got["gathered"].equal(torch.cat(given))
        start = rank * (rank + 1) // 2
        pieces = [torch.arange(start, start + rank + 1) + 10 * other for other in range(3)]
        assert got["exchanged"].equal(torch.cat(pieces).to(dtype).view(-1, 1))
        assert got["half"].equal(given[1] if rank == 1 else given[0] + given[2])
        assert got["shifted"].equal(given[rank - 1]) and got["empty"].numel() == 0
    assert results.traces[0].count("all_gather") == 1, "a split is no traffic of the learner's"


def test_large_messages_hold_nobody_up(sandbox):
    source = """
def f(group, x):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    works = [group.isend(x, right) for _ in range(3)]
    group.irecv(x.clone(), left), group.irecv(x.clone(), left)
    out = group.recv(x.clone(), left)
    works[2].wait()
    return out.sum().item()
"""
    x = torch.ones(2**18)
    assert attempt(sandbox, source).launch(lambda g, f, x: f(g, x), x, ranks=2) == [2.0**18] * 2


SENT = Op("send", 8, 8, 2, 1, issued=1.0, waited=2.0, members=(0, 1))
SUMMED = Op("all_reduce", 64, 64, 2, issued=3.0, waited=3.5, members=(0, 1))
NOTES = [
    Note("send", 0, 8, 8, (0, 1), 1),
    Note("wait", 0),
    Note("mark", label="backward"),
    Note("all_reduce", 1, 64, 64, (0, 1)),
    Note("wait", 1),
]


def trace(*ops: Op, marks=((("backward", 2.5)),)) -> Trace:
    return Trace(0, False, list(ops), list(marks))


def test_an_honest_trace_says_what_was_noted():
    assert differs(NOTES, trace(SENT, SUMMED)) is None
    words = [Note("all_gather", 2 + n, 16, 8, (0, 1)) for n in range(SPLITS)]
    assert differs([*NOTES, *words], trace(SENT, SUMMED)) is None


@pytest.mark.parametrize(
    ("ops", "marks", "said"),
    [
        ([SENT], [("backward", 2.5)], "past the group's meter"),
        ([SUMMED, SENT], [("backward", 2.5)], "past the group's meter"),
        ([SENT, SUMMED, SENT], [("backward", 2.5)], "was not sent"),
        ([SENT, replace(SUMMED, kind="send")], [("backward", 2.5)], "past the group's meter"),
        ([SENT, replace(SUMMED, sent_bytes=8)], [("backward", 2.5)], "past the group's meter"),
        ([SENT, replace(SUMMED, issued=2.2)], [("backward", 2.5)], "times of group.trace"),
        ([SENT, replace(SUMMED, issued="now")], [("backward", 2.5)], "times of group.trace"),
        ([replace(SENT, waited=None), SUMMED], [("backward", 2.5)], "times of group.trace"),
        ([SENT, SUMMED], [("backward", 9.0)], "times of group.trace"),
        ([SENT, SUMMED], [("forward", 2.5)], "marks ('backward' was set)"),
        ([SENT, SUMMED], [], "times of group.trace"),
        ([SENT, SUMMED], [("a", 2.5), ("b", 2.6)], "group.trace.marks"),
    ],
)
def test_a_trace_that_says_otherwise_is_named(ops, marks, said):
    assert said in differs(NOTES, trace(*ops, marks=marks))


def test_words_past_the_meter_are_few():
    words = [Note("all_gather", 2 + n, 16, 8, (0, 1)) for n in range(SPLITS + 1)]
    assert "past the group's meter" in differs([*NOTES, *words], trace(SENT, SUMMED))
