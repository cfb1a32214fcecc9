"""The probes of lab e02: what runs in the sandbox, beside a submission on data parallelism.

Nothing here knows what is expected: the verdicts, in test_e02_data_parallel.py, are made from
what comes back.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch import nn

WIDTH, LAYERS = 6, 4


class Net(nn.Module):
    """Four layers, one weight tied, one frozen, and a side layer that not every rank uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.layers[1].weight = self.layers[0].weight
        self.layers[2].bias.requires_grad_(False)
        self.side = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, with_side=True):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.side(x) if with_side else x


def network():
    """The same weights wherever it is made."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return Net().double()


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def squared(model, x, **options):
    return model(x, **options).square().mean()


def after_backward(group, f, batches, *rest):
    """For functions that average what a plain backward has left."""
    model = network()
    squared(model, batches[group.rank]).backward()
    group.trace.mark("backward done")
    f(group, model, *rest)
    return gradients(model)


def some_unused(group, f, batches, *rest):
    """Only rank 0 uses the side layer: the others have no gradient for it."""
    model = network()
    squared(model, batches[group.rank], with_side=group.rank == 0).backward()
    f(group, model, *rest)
    return gradients(model)


def wrapped(group, f, batches, bucket_bytes, usage="all"):
    """For the DDP class: two steps, so that leftovers of the first one would show."""
    model = network()
    ddp = f(model, group, bucket_bytes)
    steps = []
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        begin = len(group.trace.ops)
        side = usage == "all" or group.rank == 0
        squared(ddp, batches[group.rank], with_side=side).backward()
        group.trace.mark("backward returned")
        ddp.finish()
        found = gradients(model).items()
        steps.append({name: None if g is None else g.clone() for name, g in found})
    kinds = [op.kind for op in group.trace.ops[begin:]]
    return {"first": steps[0], "gradients": steps[1], "kinds": kinds}


class Slow(torch.autograd.Function):
    """Notes on the rank's clock when backward comes by: between the upper and the lower half."""

    @staticmethod
    def forward(ctx, x, trace):
        ctx.trace = trace
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.trace.mark("halfway")
        return gradient, None


class Halves(nn.Module):
    """Two layers with a time stamp between their backwards."""

    def __init__(self, trace) -> None:
        super().__init__()
        self.lower, self.upper = nn.Linear(WIDTH, WIDTH).double(), nn.Linear(WIDTH, WIDTH).double()
        self.trace = trace

    def forward(self, x):
        return self.upper(Slow.apply(self.lower(x), self.trace))


def stamped(group, f, batches):
    """One bucket a layer: the upper one's must be on its way when backward is halfway."""
    ddp = f(Halves(group.trace), group, WIDTH * (WIDTH + 1) * 8)
    begin = len(group.trace.ops)
    squared(ddp, batches[group.rank]).backward()
    ddp.finish()
    sent = [op for op in group.trace.ops[begin:] if op.kind == "all_reduce"]
    halfway = next(at for name, at in group.trace.marks if name == "halfway")
    times = {"issued": [op.issued for op in sent], "waited": [op.waited for op in sent]}
    return {**times, "halfway": halfway}


class Recorder(nn.Module):
    """Stands for a DDP model: counts which backwards would synchronize."""

    def __init__(self, model) -> None:
        super().__init__()
        self.module, self.synchronize, self.log, self.entered = model, True, [], 0

    def forward(self, x):
        self.log.append(self.synchronize)
        return self.module(x)

    @contextmanager
    def no_sync(self):
        self.synchronize, self.entered = False, self.entered + 1
        yield
        self.synchronize = True


def accumulated(f, microbatches):
    model = network()
    recorder = Recorder(model)
    value = f(recorder, microbatches, squared)
    return {"gradients": gradients(model), "log": recorder.log, "loss": value}
