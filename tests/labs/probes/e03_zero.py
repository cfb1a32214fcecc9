"""The probes of lab e03: what runs in the sandbox, beside a submission on ZeRO.

Nothing here knows what is expected: the verdicts, in test_e03_zero.py, are made from
what comes back.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from minitrain.measure.budget import memory_budget
from minitrain.parallel.zero.plain_unit import FlatUnit

WIDTHS = (5, 7, 3, 5)  # units of 42, 24 and 20 elements: not all are divisible by 3

# A large eps, so that a gradient N times too large is not hidden by Adam's division.
ADAMW = partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1, eps=0.1)


class Seen(torch.autograd.Function):
    """The identity; tells when backward comes by."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.layer.note("backward")
        return gradient, None


class Layer(nn.Linear):
    """Says in `log` when it computes; a freed parameter is told, not read."""

    log, number, counts = None, 0, None

    def forward(self, x):
        self.note("forward")
        return Seen.apply(F.linear(x, self.weight, self.bias), self)

    def note(self, what):
        if not self.weight.untyped_storage().nbytes():
            raise RuntimeError(
                f"the {what} of layer {self.number} begins and its parameters are freed: "
                "gather() them before"
            )
        if self.log is not None:
            self.log.append((what, self.number, self.counts()))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer(m, n) for m, n in pairwise(WIDTHS))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def network():
    """The same weights wherever it is made."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return Net().double()


def squared(model, x):
    return model(x).square().mean()


def values(model):
    return [p.detach().clone() for p in model.parameters()]


def zero1_steps(group, f, batches):
    """Parameters, bytes of optimizer state, and what was sent, after some steps."""
    model = network()
    units = [FlatUnit(layer, group) for layer in model.layers]
    with memory_budget(10**9) as ledger:
        optimizer = f(units, ADAMW)
        for step in batches:
            squared(model, step[group.rank]).backward()
            optimizer.step()
        state = ledger.now["optimizer"]
    left = sum(p.grad is not None for p in model.parameters())
    return {"parameters": values(model), "state": state, "left": left}


def reduced(group, f, batches):
    """After one backward a step, without any optimizer between: microbatches add up."""
    model = network()
    units = [FlatUnit(layer, group) for layer in model.layers]
    for step in batches:
        squared(model, step[group.rank]).backward()
        for unit in units:
            f(unit)
    return [
        {
            "gradient": unit.shard.grad,
            "held": 0 if unit.shard.grad is None else unit.shard.grad.untyped_storage().nbytes(),
            "left": sum(p.grad is not None for p in unit.parameters),
        }
        for unit in units
    ]


def gathered(group, f):
    """A unit's bytes and values through two turns of gather and free."""
    layer = network().layers[1]
    unit = f(layer, group)
    full = getattr(unit, "full", None)
    storage = full.untyped_storage() if isinstance(full, torch.Tensor) else None
    size = lambda: storage.nbytes() if storage is not None else -1  # noqa: E731
    out = {"at first": size(), "shard": unit.shard.untyped_storage().nbytes()}
    unit.gather()
    if not layer.weight.untyped_storage().nbytes():
        return {**out, "empty": "gather()"}
    out["values"] = values(layer)
    y = layer(torch.ones(1, WIDTHS[1], dtype=torch.float64)).sum()  # its graph saves the weights
    unit.free()
    out["freed"] = size()
    with torch.no_grad():
        unit.shard.mul_(3.0)
    unit.gather()
    if not layer.weight.untyped_storage().nbytes():
        return {**out, "empty": "free() and a second gather()"}
    out["tripled"] = values(layer)
    y.backward()
    out["same"] = layer.weight.untyped_storage().nbytes() == size()
    unit.free()
    out["freed again"] = size()
    return out


def started(group, f):
    """Twice begun, and twice waited for."""
    unit = f(network().layers[1], group)
    begin = len(group.trace.ops)
    unit.start_gather()
    unit.start_gather()
    waited = [op.waited is not None for op in group.trace.ops[begin:]]
    unit.gather()
    unit.gather()
    count = len(group.trace.ops) - begin
    unit.free()
    return {"waited": waited, "count": count}


def unused(group, f):
    """A gather that is begun, and freed before anybody needed it."""
    unit = f(network().layers[1], group)
    begin = len(group.trace.ops)
    unit.start_gather()
    unit.free()
    return [op.waited is not None for op in group.trace.ops[begin:]]


class LoggedUnit(FlatUnit):
    """The course's own sharded unit; every call is a line of `log`."""

    def __init__(self, module, group, log):
        super().__init__(module, group)
        self.shard = nn.Parameter(self.shard.data.clone())
        self.log, self.work = log, None
        self.full.untyped_storage().resize_(0)

    def start_gather(self):
        if self.work is None:
            self.log.append(("start", self.module.number))
            self.full.untyped_storage().resize_(self.full.nbytes)
            self.work = self.group.all_gather(self.full, self.shard.data, async_op=True)

    def gather(self):
        self.start_gather()
        self.log.append(("gather", self.module.number))
        self.work.wait()

    def free(self):
        if self.work is not None:
            self.work.wait()
            self.log.append(("free", self.module.number))
        self.work = None
        self.full.untyped_storage().resize_(0)

    @property
    def is_full(self):
        return self.full.untyped_storage().nbytes() > 0


def zero3_steps(group, f, batches):
    """Parameters after some steps, and the log of the second step, or of the last."""
    model, log = network(), []
    units = []
    for number, layer in enumerate(model.layers):
        layer.number, layer.log = number, log
        units.append(LoggedUnit(layer, group, log))
    for layer in model.layers:
        layer.counts = lambda: sum(unit.is_full for unit in units)
    f(units)
    optimizer = ADAMW([unit.shard for unit in units])
    for step in batches:
        log.clear()
        begin = len(group.trace.ops)
        loss = squared(model, step[group.rank])
        after_forward = sum(unit.is_full for unit in units)
        loss.backward()
        after_backward = sum(unit.is_full for unit in units)
        left = sum(p.grad is not None for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    ops = [(op.kind, op.sent_bytes) for op in group.trace.ops[begin:]]
    for unit in units:
        unit.gather()
    return {
        "parameters": values(model),
        "log": [list(line) for line in log],
        "after forward": after_forward,
        "after backward": after_backward,
        "left": left,
        "ops": [list(op) for op in ops],
    }


class Shelf:
    """A store that keeps bytes, no tensors, and writes down who came."""

    def __init__(self):
        self.kept, self.calls, self.problems = {}, [], []

    def write(self, key, tensors):
        self.calls.append(["write", key])
        if any(t.untyped_storage().nbytes() < t.nbytes for t in tensors):
            self.problems.append("freed before it was written")
        else:
            self.kept[key] = [t.clone().numpy().tobytes() for t in tensors]

    def read(self, key, into):
        self.calls.append(["read", key])
        kept = self.kept.get(key)
        if any(t.untyped_storage().nbytes() < t.nbytes for t in into):
            self.problems.append("read into tensors without memory")
        elif kept is None or [len(data) for data in kept] != [t.nbytes for t in into]:
            words = "was never written" if kept is None else "holds another unit's tensors"
            self.problems.append(f"read {key!r}, which {words}")
            for tensor in into:
                tensor.zero_()
        else:
            for tensor, data in zip(into, kept):
                found = torch.frombuffer(bytearray(data), dtype=tensor.dtype)
                tensor.copy_(found.view(tensor.shape))

    def commit(self):
        self.calls.append(["commit", ""])


class Counted(torch.optim.AdamW):
    """Notes how much optimizer state is in memory, of all optimizers, at each of its steps."""

    everyone, seen = (), ()

    def step(self):
        if any(t.untyped_storage().nbytes() < t.nbytes for t in held_by([self])):
            raise RuntimeError(
                "an optimizer steps while its state has no memory: read it back before step()"
            )
        super().step()
        self.seen.append(held_bytes(self.everyone))


def held_by(optimizers):
    return [t for o in optimizers for state in o.state.values() for t in state.values()]


def held_bytes(optimizers):
    return sum(t.untyped_storage().nbytes() for t in held_by(optimizers))


def offload_steps(f, gradients):
    """Three optimizers of shards of odd sizes, with their state in a store."""
    shards = [nn.Parameter(torch.ones(n, dtype=torch.float64)) for n in (5, 9, 4)]
    optimizers, seen, store = [Counted([s], lr=1e-2) for s in shards], [], Shelf()
    for optimizer in optimizers:
        optimizer.everyone, optimizer.seen = optimizers, seen
    after, calls = [], []
    for step in gradients:
        begin = len(store.calls)
        for shard, gradient in zip(shards, step):
            shard.grad = gradient.clone()
        f(optimizers, store)
        after.append(held_bytes(optimizers))
        calls.append(store.calls[begin:])
    total = sum(t.nbytes for t in held_by(optimizers))
    largest = max(sum(t.nbytes for t in held_by([o])) for o in optimizers)
    return {
        "shards": [s.detach() for s in shards],
        "seen": seen,
        "after": after,
        "calls": calls,
        "total": total,
        "largest": largest,
        "problems": store.problems,
    }
