"""When a pipeline's operations run, and what they hold: as the validator says of the schedule."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from minitrain.data.loader import Batch
from minitrain.measure.memory import MemoryLedger
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.network.fabric import FABRICS, Device, Fabric
from minitrain.network.links import Link, LinkModel
from minitrain.network.logical_clock import LogicalClock
from minitrain.parallel.pipeline import executor
from minitrain.parallel.pipeline.executor import Pipeline
from minitrain.parallel.pipeline.plain import share_of_loss
from minitrain.parallel.pipeline.schedules import gpipe, make_schedule
from minitrain.parallel.pipeline.stages import Timed, cut
from minitrain.parallel.pipeline.timeline import UNIT, UNIT_SPLIT, clocked, executed
from minitrain.ranks.launch import launch

from .pipeline_toys import microbatches, tiny

ALPHA = 0.25  # of a forward: what a message takes


class Known(executor.RankStep):
    """Each operation takes its unit on the emulated clock, and next to nothing else."""

    clock = None

    def run(self, operation, arrived):
        result = super().run(operation, arrived)
        self.clock.advance((UNIT_SPLIT if self.splits else UNIT)[operation.kind])
        return result


def emulated(group, cases):
    events, executor.RankStep = [], Known  # in this rank's process alone
    for name, m, v in cases:
        schedule = make_schedule(name, group.size, m, v)
        group.use(LogicalClock(group.clock.fabric, group.rank))
        Known.clock = group.clock
        pipeline = Pipeline(group, schedule, cut(tiny(), schedule, group.rank))
        pipeline.shared = []  # what is summed at the end is no operation of the schedule
        pipeline.run(microbatches(m), share_of_loss(1))
        events += executed([group.trace]).ranks
    return events


TIMED = [
    ("gpipe", 4, 1),
    ("1f1b", 5, 1),
    ("interleaved", 4, 2),
    ("zero-bubble", 6, 1),
    ("dualpipe", 6, 1),
]


@pytest.mark.parametrize("alpha", [0.0, ALPHA])
def test_the_emulated_clock_is_the_schedules_own(alpha):
    """Every operation begins and ends when the validator says, so that the bubble is its, too."""
    fabric = Fabric("units", Device("any"), LinkModel(Link(alpha, 0)), compute_scale=1e-12)
    runs = launch(emulated, TIMED, ranks=4, fabric=fabric, timeout=60)
    for (name, m, v), *ranks in zip(TIMED, *runs):
        planned = clocked(make_schedule(name, 4, m, v), send=alpha)
        for got, want in zip(ranks, planned.ranks):
            assert [event.operation for event in got] == [event.operation for event in want]
            times = [time for event in want for time in event[1:]]
            assert [time for event in got for time in event[1:]] == pytest.approx(times, abs=1e-6)


# ---- memory ----

SHAPE = ModelConfig(256, 128, layers=4, heads=4, kv_heads=4, ffn_size=384)


def equal_batches(m):
    tokens = torch.randint(256, (m, 4, 64), generator=torch.Generator().manual_seed(0))
    documents, places = torch.zeros(4, 64, dtype=torch.int64), torch.arange(64).expand(4, 64)
    return [Batch(row, row, documents, places) for row in tokens]


def activations(group):
    """The most bytes that autograd kept at once on this rank, by schedule."""
    peaks = {}
    for name in ("gpipe", "1f1b"):
        schedule = make_schedule(name, group.size, 6)
        (stage,) = cut(build(SHAPE), schedule, group.rank)
        pipeline = Pipeline(group, schedule, [stage])
        with MemoryLedger(stage) as ledger:
            pipeline.run(equal_batches(6), share_of_loss(1))
        peaks[name] = ledger.highest["activations"]
    return peaks


def test_bytes_of_activations_follow_the_count():
    """Six microbatches alive in GPipe, 2 - r in 1F1B: what is counted as freed is freed."""
    for rank, peaks in enumerate(launch(activations, ranks=2, timeout=60)):
        assert peaks["gpipe"] / peaks["1f1b"] == pytest.approx(6 / (2 - rank), rel=0.1)


# ---- stages ----


def test_what_is_cut_off_can_be_freed():
    model = tiny()
    gone = weakref.ref(model.embed)
    (stage,) = cut(model, make_schedule("1f1b", 4, 1), 3)
    del model
    gc.collect()
    assert gone() is None and stage.head is not None


def test_a_backward_takes_twice_a_forward_and_nothing_else_changes():
    config = ModelConfig(32, 8, 1, heads=2, kv_heads=2, ffn_size=16)
    (stage,) = cut(build(config), gpipe(1, 1), 0)
    tokens = torch.arange(6).view(2, 3)
    batch = Batch(tokens, tokens, torch.zeros_like(tokens), torch.arange(3).expand(2, 3))
    stage(None, batch).sum().backward()
    want = [p.grad.clone() for p in stage.parameters()]
    stage.zero_grad()
    clock = LogicalClock(replace(FABRICS["h100-infiniband"](), compute_scale=1e-12), 0)
    out = Timed(stage, clock, 3.0)(None, batch)
    assert abs(clock.now() - 3) < 1e-6
    out.sum().backward()
    assert abs(clock.now() - 9) < 1e-6
    assert all(torch.equal(p.grad, w) for p, w in zip(stage.parameters(), want))
