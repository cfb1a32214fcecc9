"""The probes of lab e02c: what runs in the sandbox, beside a submission on pipeline parallelism.

Nothing here knows what is expected: the verdicts, in test_e02c_pipeline_parallel.py, are made from
what comes back.
"""

from __future__ import annotations

import weakref

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from minitrain.data.loader import Batch
from minitrain.parallel.pipeline.operations import Operation

from .in_turn import in_turn as in_turn  # its own probe, too


def schedules_of(f, cases):
    """A dict a call: what it made, as plain lists, at once and after the last call."""
    made = [(schedule, plain(schedule)) for schedule in (f(*case) for case in cases)]
    return [{"out": first, "later": plain(schedule)} for schedule, first in made]


def plain(schedule):
    """The verdict is not computed here: a text where it is no Schedule."""
    if not hasattr(schedule, "ranks"):
        return type(schedule).__name__
    orders = [[tuple(op) if isinstance(op, tuple) else (op,) for op in o] for o in schedule.ranks]
    kind = (schedule.name, schedule.microbatches, schedule.chunks)
    return {"kind": kind, "orders": orders}


WIDTH, WORDS = 4, 7


class Marked(torch.autograd.Function):
    """The same x, and `note` is called when backward comes by."""

    @staticmethod
    def forward(ctx, x, note):
        ctx.note = note
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.note()
        return gradient, None


class Kept:
    """Stands for a tensor that autograd saved; its end is the end of the saving."""

    def __init__(self, tensor, counts, i):
        self.tensor, self.counts, self.i = tensor, counts, i
        counts[i] = counts.get(i, 0) + 1

    def __del__(self):
        self.counts[self.i] -= 1


class Toy(nn.Module):
    """One stage of three kinds of layers; it notes what it holds, and on a logical clock when."""

    def __init__(self, index, stages, group=None):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11 + index)
            self.embed = nn.Embedding(WORDS, WIDTH) if index == 0 else None
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.head = nn.Linear(WIDTH, WORDS) if index == stages - 1 else None
        self.double()
        self.device, self.group = torch.device("cpu"), group
        self.begin([])

    def begin(self, batches):
        """A new step: of what was held before, nothing is counted."""
        self.batches = batches
        self.saved, self.passes, self.peak, self.held = {}, [], 0, 0

    def compute(self, x, batch):
        x = self.embed(batch.tokens) if self.embed is not None else x  # (B, T, D)
        x = Marked.apply(x, self.ends(batch))
        x = torch.tanh(self.layer(x))
        x = x if self.head is None else self.head(x)
        return Marked.apply(x, self.begins(batch))

    def forward(self, x, batch):
        if self.group is None:
            return self.compute(x, batch)
        if (x is None) != (self.embed is not None):
            raise ValueError(f"stage: x is {type(x).__name__} on rank {self.group.rank}")
        i = self.number(batch)
        self.note(Operation("F", i), 1.0)
        counts = self.saved
        with saved_tensors_hooks(lambda t: Kept(t, counts, i), lambda kept: kept.tensor):
            out = self.compute(x, batch)
        self.group.trace.mark(Operation("F", i))
        # the last stage's x lives as long as its loss, which may be returned with its graph
        held = (x, out) if self.embed is None and self.head is None else (out,)
        self.passes.append([weakref.ref(tensor) for tensor in held])
        self.peak = max(self.peak, sum(count > 0 for count in counts.values()))
        self.held = max(self.held, sum(any(ref() is not None for ref in p) for p in self.passes))
        return out

    def message(self, batch):
        return torch.empty(*batch.tokens.shape, WIDTH, dtype=torch.float64)

    def number(self, batch):
        (i,) = [i for i, other in enumerate(self.batches) if other.tokens is batch.tokens]
        return i

    def note(self, operation, seconds):
        self.group.trace.mark(operation)
        if self.group.clock.emulated:
            self.group.clock.advance(seconds)

    def begins(self, batch):
        return lambda: self.group and self.note(Operation("B", self.number(batch)), 2.0)

    def ends(self, batch):
        return lambda: self.group and self.group.trace.mark(Operation("B", self.number(batch)))


def batches_of(data):
    return [Batch(tokens, targets, tokens, tokens) for tokens, targets in data]


def ran(group, f, steps):
    """The learner's executor, step after step on one toy stage, whose gradients add up."""
    stage = Toy(group.rank, group.size, group)
    live = [step(group, f, stage, orders[group.rank], data) for orders, data in steps]
    return [{**notes, "later": number_of(value)} for value, notes in live]


def step(group, f, stage, order, data):
    """What it returned, and what is to be known of it at once."""
    order, batches = [Operation(*op) for op in order], batches_of(data)
    stage.begin(batches)
    group.trace.mark("pipeline")
    value = f(group, order, stage, batches)
    return value, {
        "out": number_of(value),
        "given": ([tuple(op) for op in order], [(b.tokens, b.targets) for b in batches]),
        "shares": False,
        "gradients": {
            n: None if p.grad is None else p.grad.clone() for n, p in stage.named_parameters()
        },
        "peak": stage.peak,
        "held": stage.held,
    }


def number_of(value):
    return None if value is None else torch.as_tensor(value, dtype=torch.float64).detach().clone()
