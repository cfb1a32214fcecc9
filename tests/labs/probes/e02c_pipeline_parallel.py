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


def splits_of(f, cases):
    return [list(f(layers, stages)) for layers, stages in cases]


def schedules_of(f, cases):
    """Plain lists, whatever it made: the verdict is not computed here."""
    found = []
    for case in cases:
        schedule = f(*case)
        if not hasattr(schedule, "ranks"):
            found.append(f"{type(schedule).__name__}")
        else:
            found.append([[tuple(op) for op in order] for order in schedule.ranks])
    return found


WIDTH, WORDS = 4, 7


class Marked(torch.autograd.Function):
    """Does nothing, and calls `note` when backward comes by."""

    @staticmethod
    def forward(ctx, x, note):
        ctx.note = note
        return x.clone()

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

    def __init__(self, index, stages, group=None, batches=()):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11 + index)
            self.embed = nn.Embedding(WORDS, WIDTH) if index == 0 else None
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.head = nn.Linear(WIDTH, WORDS) if index == stages - 1 else None
        self.double()
        self.device, self.group, self.batches = torch.device("cpu"), group, batches
        self.saved, self.outs, self.peak, self.held = {}, [], 0, 0

    def compute(self, x, batch):
        x = self.embed(batch.tokens) if self.embed is not None else x  # (B, T, D)
        x = Marked.apply(x, self.ends(batch))
        x = torch.tanh(self.layer(x))
        x = x if self.head is None else self.head(x)
        return Marked.apply(x, self.begins(batch))

    def forward(self, x, batch):
        if self.group is None:
            return self.compute(x, batch)
        i = self.number(batch)
        self.note(Operation("F", i), 1.0)
        counts = self.saved
        with saved_tensors_hooks(lambda t: Kept(t, counts, i), lambda kept: kept.tensor):
            out = self.compute(x, batch)
        self.group.trace.mark(Operation("F", i))
        self.outs.append(weakref.ref(out))
        self.peak = max(self.peak, sum(count > 0 for count in counts.values()))
        self.held = max(self.held, sum(ref() is not None for ref in self.outs))
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


def ran(group, f, orders, data):
    """One step of the learner's executor on a toy stage."""
    batches = batches_of(data)
    stage = Toy(group.rank, group.size, group, batches)
    group.trace.mark("pipeline")
    value = f(group, [Operation(*op) for op in orders[group.rank]], stage, batches)
    return {
        "gradients": {name: p.grad for name, p in stage.named_parameters()},
        "loss": None if value is None else torch.as_tensor(value, dtype=torch.float64).detach(),
        "peak": stage.peak,
        "held": stage.held,
        "left": sum(ref() is not None for ref in stage.outs),
    }
