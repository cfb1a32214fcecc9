"""The probes of lab e03: what runs in the sandbox, beside a submission on ZeRO.

Nothing here knows what is expected: the verdicts, in test_e03_zero.py, are made from
what comes back. Every probe has several models alive at once, of other sizes and dtypes, and goes
from one to the next: what a submission keeps of one must not reach another.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from minitrain.parallel.zero.plain_unit import FlatUnit

from .alive import Alive

# A large eps, so that a gradient N times too large is not hidden by Adam's division.
ADAMW = partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1, eps=0.1)
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


class Case(NamedTuple):
    """A model of linear layers, each of them a unit, and how it is trained."""

    widths: tuple[int, ...]
    dtype: torch.dtype = torch.float64
    make: partial = ADAMW


LARGE = Case((5, 7, 5, 7))  # units of 42, 40 and 42 elements: shards of equal size, and padding
SMALL = Case((1, 1, 4), torch.float32, SGD)  # 2 elements on 3 ranks: one rank has padding alone
ONE_UNIT = Case((4, 3), torch.float32, SGD)
FIVE_UNITS = Case((3, 4, 2, 5, 3, 4))
WHOLE_WEIGHT = 8 * 5 * 7  # bytes of a weight of LARGE; no activation of any case has as many


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


class Linear(nn.Linear):
    """Marks when it computes; a freed parameter is told, not read."""

    mark, number, used = None, 0, ("weight", "bias")

    def forward(self, x):
        self.note("forward")
        weight, bias = (
            p if name in self.used else p.detach() for name, p in self.named_parameters()
        )
        return Seen.apply(F.linear(x, weight, bias), self)

    def note(self, what):
        if not has_memory(self):
            raise RuntimeError(
                f"the {what} of unit {self.number} begins and its parameters are freed: "
                "gather() them before"
            )
        if self.mark is not None:
            self.mark(what, self.number)


class Net(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.layers = nn.ModuleList(Linear(m, n) for m, n in pairwise(widths))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def network(case=LARGE):
    """The same weights wherever it is made."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return Net(case.widths).to(case.dtype)


def squared(model, x):
    return model(x).square().mean()


def squared_where_used(model, x, is_idle):
    """Of an idle rank the first weight has no gradient, nor the whole second unit, nor the third
    unit's bias."""
    used = (("bias",), (), ("weight",)) if is_idle else [("weight", "bias")] * 3
    for layer, names in zip(model.layers, used):
        layer.used = names
    return squared(model, x)


def values(model):
    return [p.detach().clone() for p in model.parameters()]


def has_memory(layer):
    return all(p.untyped_storage().nbytes() for p in layer.parameters())


def moved_out(unit, *tensors):
    """Whether one of these is no view of `unit.full`."""
    place = unit.full.untyped_storage().data_ptr()
    return any(t.untyped_storage().data_ptr() != place for t in tensors)


def zero1_steps(group, f, cases, batches, idle=None):
    """batches[case][step][rank]. Of each model: parameters, bytes of state, gradients that are left,
    and what is no view any more. idle: a rank that does not use some parameters."""
    models = [network(case) for case in cases]
    units = [[FlatUnit(layer, group) for layer in model.layers] for model in models]
    made = [[] for _ in cases]  # optimizers, as they were asked for
    wrapped = [f(list(u), noting(case.make, m)) for u, case, m in zip(units, cases, made)]
    left = [set() for _ in cases]
    for steps in zip(*batches):
        for number, step in enumerate(steps):
            model, own = models[number], units[number]
            squared_where_used(model, step[group.rank], group.rank == idle).backward()
            wrapped[number].step()
            left[number] |= {"parameter" for p in model.parameters() if p.grad is not None}
            left[number] |= {"shard" for unit in own if unit.shard.grad is not None}
    return [
        {
            "parameters": values(model),
            "state": held_bytes(optimizers),
            "left": sorted(found),
            "moved": any(moved_out(unit, unit.shard, *unit.module.parameters()) for unit in own),
        }
        for model, optimizers, found, own in zip(models, made, left, units)
    ]


def noting(make, made):
    def make_and_note(parameters):
        made.append(make(parameters))
        return made[-1]

    return make_and_note


def reduced(group, f, cases, batches, idle=None):
    """batches[case][microbatch][rank]. What each left behind, unit by unit: no optimizer between,
    and before the last one all is forgotten. idle: as above."""
    models = [network(case) for case in cases]
    units = [[FlatUnit(layer, group) for layer in model.layers] for model in models]
    made = [Alive() for _ in cases]
    seen = [[] for _ in cases]
    for number, microbatches in enumerate(zip(*batches), 1):
        for model, own, notes, alive, step in zip(models, units, seen, made, microbatches):
            if number == len(batches[0]):
                for unit in own:
                    unit.shard.grad = None
            squared_where_used(model, step[group.rank], group.rank == idle).backward()
            with alive:
                for unit in reversed(own):
                    f(unit)
            beside = alive.nbytes([unit.shard.grad for unit in own])
            notes.append([{**after_reduce(unit), "beside": beside} for unit in own])
    return [{"seen": notes, "parameters": values(m)} for notes, m in zip(seen, models)]


def after_reduce(unit):
    gradient = unit.shard.grad
    return {
        "gradient": None if gradient is None else gradient.clone(),
        "held": 0 if gradient is None else gradient.untyped_storage().nbytes(),
        "left": sum(p.grad is not None for p in unit.parameters),
    }


class Turns:
    """A unit on its way through gather and free, with a graph that holds its parameters."""

    def __init__(self, layer, make, group):
        self.alive, self.layer = Alive(), layer
        with self.alive:
            self.unit = make(layer, group)
        self.storage = self.unit.full.untyped_storage()
        self.out = {"shard": self.unit.shard.untyped_storage().nbytes()}
        self.x = torch.ones(1, layer.in_features, dtype=layer.weight.dtype, requires_grad=True)
        self.note_bytes("at first")

    def gather(self, when):
        with self.alive:
            self.unit.gather()
        if not has_memory(self.layer):
            raise RuntimeError("after gather() the parameters have no memory")
        self.note_bytes("gathered")
        self.out[when] = values(self.layer)

    def free(self, when):
        with self.alive:
            self.unit.free()
        self.note_bytes(when)

    def note_bytes(self, when):
        known = self.unit.shard, self.unit.full, *self.layer.parameters()
        self.out[when] = self.storage.nbytes(), self.alive.nbytes(known)


def gathered(group, f):
    """Bytes and values of two units through two turns, alive together."""
    layers = [network(LARGE).layers[1], network(SMALL).layers[0]]
    turns = [Turns(layer, f, group) for layer in layers]
    for turn in turns:
        turn.gather("values")
    outputs = [turn.layer(turn.x).sum() for turn in turns]
    for turn in turns:
        turn.free("freed")
        with torch.no_grad():
            turn.unit.shard.mul_(3.0)
    for turn in turns:
        turn.gather("tripled")
    for turn, y in zip(turns, outputs):
        y.backward()
        turn.out["gradient"] = turn.x.grad
        turn.out["moved"] = moved_out(turn.unit, *turn.unit.module.parameters())
        turn.free("freed again")
    return [turn.out for turn in turns]


def started(group, f):
    """Twice begun, twice waited for, begun once more; then freed twice."""
    unit = f(network().layers[1], group)
    storage = unit.full.untyped_storage()
    group.trace.mark("turns")
    unit.start_gather()
    group.trace.mark("begun")
    unit.start_gather()
    group.trace.mark("started")
    unit.gather()
    group.trace.mark("gathered")
    unit.gather()
    unit.start_gather()
    group.trace.mark("used")
    unit.free()
    freed = storage.nbytes()
    unit.free()
    group.trace.mark(("over", "turns"))
    return freed


def unused(group, f):
    """A gather that is begun, and freed before anybody needed it; then one that is needed."""
    layer = network().layers[1]
    unit = f(layer, group)
    storage = unit.full.untyped_storage()
    group.trace.mark("turns")
    unit.start_gather()
    unit.free()
    group.trace.mark(("over", "turns"))
    freed = storage.nbytes()
    group.trace.mark("at last")
    unit.gather()
    group.trace.mark(("over", "at last"))
    return {"freed": freed, "values": values(layer) if has_memory(layer) else None}


class ShardedUnit(FlatUnit):
    """The course's own; every call sets a mark."""

    def __init__(self, module, group):
        super().__init__(module, group)
        self.shard = nn.Parameter(self.shard.data.clone())
        self.work = None
        self.full.untyped_storage().resize_(0)

    def start_gather(self):
        if self.work is None:
            self.group.trace.mark(("start", self.module.number))
            self.full.untyped_storage().resize_(self.full.nbytes)
            self.work = self.group.all_gather(self.full, self.shard.data, async_op=True)

    def gather(self):
        self.start_gather()
        self.group.trace.mark(("gather", self.module.number))
        self.work.wait()

    def free(self):
        if self.work is not None:
            self.work.wait()
            self.group.trace.mark(("free", self.module.number))
        self.work = None
        self.full.untyped_storage().resize_(0)


class Zero3Run:
    """One model of a case, its units in the hands of a submission; `number` is the model's."""

    def __init__(self, group, f, case, number):
        self.group, self.number, self.model = group, number, network(case)
        self.units, self.alive = [], Alive()
        for place, layer in enumerate(self.model.layers):
            layer.number, layer.mark = place, self.mark
            self.units.append(ShardedUnit(layer, group))
        f(list(self.units))
        self.optimizer = case.make([unit.shard for unit in self.units])

    def count_full(self):
        return sum(unit.full.untyped_storage().nbytes() > 0 for unit in self.units)

    def mark(self, what, number):
        """How many units are full as this one computes, and the bytes of what is as large as a
        whole weight and was made since the pass began."""
        large = self.alive.nbytes(at_least=WHOLE_WEIGHT)
        self.group.trace.mark((what, number, self.count_full(), large))

    def one_pass(self, x, training=True):
        """What was held when it had computed; what was called and sent is marked."""
        self.group.trace.mark(("pass", self.number))
        with self.alive:
            with torch.set_grad_enabled(training):
                loss = squared(self.model, x)
            found = {"training": training, "after forward": self.count_full()}
            if training:
                loss.backward()
        self.group.trace.mark(("over", "pass", self.number))
        found["after backward"] = self.count_full()
        found["left"] = sum(p.grad is not None for p in self.model.parameters())
        shards = [unit.shard.grad for unit in self.units]
        return {**found, "beside": self.alive.nbytes([*shards, loss])}

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


def microbatches(x):
    """Of a rank's rows in one step."""
    return x.split(2)


def zero3_steps(group, f, cases, batches):
    """batches[case][step][rank]: microbatches and an update; then an evaluation. All models take
    their turns."""
    runs = [Zero3Run(group, f, case, number) for number, case in enumerate(cases)]
    passes = [[] for _ in cases]
    for steps in zip(*batches):
        for run, own, step in zip(runs, passes, steps):
            own += [run.one_pass(part) for part in microbatches(step[group.rank])]
            run.step()
            own.append(run.one_pass(step[group.rank], training=False))
    group.trace.mark("at last")
    for run in runs:
        for unit in run.units:
            unit.gather()
    group.trace.mark(("over", "at last"))
    return [{"parameters": values(run.model), "passes": own} for run, own in zip(runs, passes)]


class Store:
    """Keeps bytes, no tensors, and writes down who came; an empty list leaves no trace."""

    def __init__(self):
        self.kept, self.calls, self.problems = {}, [], []

    def write(self, key, tensors):
        tensors = list(tensors)
        if not tensors:
            self.kept.setdefault(key, [])
            return
        self.calls.append(("write", str(key)))
        if all_in_memory(tensors):
            self.kept[key] = [t.clone().numpy().tobytes() for t in tensors]
        else:
            self.problems.append("freed before it was written")

    def read(self, key, into):
        into, kept = list(into), self.kept.get(key)
        if into:
            self.calls.append(("read", str(key)))
        if kept is None:
            self.problems.append(f"read {key!r}, which was never written")
        elif not all_in_memory(into):
            self.problems.append("read into tensors without memory")
        elif into and [len(data) for data in kept] != [t.nbytes for t in into]:
            self.problems.append(f"read {key!r} into other tensors than were written")
        elif into:
            for tensor, data in zip(into, kept):
                found = torch.frombuffer(bytearray(data), dtype=tensor.dtype)
                tensor.copy_(found.view(tensor.shape))

    def commit(self):
        self.calls.append(("commit", ""))


def all_in_memory(tensors):
    return all(t.untyped_storage().nbytes() >= t.nbytes for t in tensors)


def held_by(optimizers):
    return [t for o in optimizers for state in o.state.values() for t in state.values()]


def held_bytes(optimizers):
    return sum(t.untyped_storage().nbytes() for t in held_by(optimizers))


class OffloadRun:
    """Optimizers of some shards, their store, and what was in memory at each of their steps."""

    def __init__(self, make, shards):
        self.shards = [nn.Parameter(shard.clone()) for shard in shards]
        self.optimizers = [make([shard]) for shard in self.shards]
        self.store, self.steps = Store(), []
        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(self.before)
            optimizer.register_step_post_hook(self.after)

    def before(self, optimizer, *_):
        if not all_in_memory(held_by([optimizer])):
            raise RuntimeError(
                "an optimizer steps while its state has no memory: read it back before step()"
            )

    def after(self, optimizer, *_):
        """Bytes of state of all others."""
        others = [other for other in self.optimizers if other is not optimizer]
        self.beside.append(held_bytes(others))

    def step(self, f, gradients):
        self.beside, begin = [], len(self.store.calls)
        for shard, gradient in zip(self.shards, gradients):
            shard.grad = None if gradient is None else gradient.clone()
        f(list(self.optimizers), self.store)
        calls, left = self.store.calls[begin:], held_bytes(self.optimizers)
        self.steps.append({"beside": self.beside, "left": left, "calls": calls})


def offload_steps(f, makes, shards, gradients):
    """gradients[run][step][unit]; the runs take their turns, each with a store of its own."""
    runs = [OffloadRun(make, own) for make, own in zip(makes, shards)]
    for steps in zip(*gradients):
        for run, own in zip(runs, steps):
            run.step(f, own)
    return [
        {
            "shards": [shard.detach() for shard in run.shards],
            "steps": run.steps,
            "problems": run.store.problems,
        }
        for run in runs
    ]
