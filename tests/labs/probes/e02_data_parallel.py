"""The probes of lab e02: what runs in the sandbox, beside a submission on data parallelism.

Nothing here knows what is expected: the verdicts, in test_e02_data_parallel.py, are made from
what comes back.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from .kept import kept_in

LAYERS, OUT = 5, 3
WHOLE_PATH = tuple(range(LAYERS))


class Net(nn.Module):
    """Layers of one shape, on a path that may leave some out or take them in another order; one
    weight is tied, one bias frozen, and one parameter has no dimension."""

    def __init__(self, width) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        self.layers[1].weight = self.layers[0].weight
        self.freeze()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(width, OUT)
        self.passed = None  # told a place on the path when backward comes by, above that layer

    def freeze(self, other=False):
        """The bias that is frozen; `other`: another one is, and this one no more."""
        self.layers[2].bias.requires_grad_(other)
        self.layers[3].bias.requires_grad_(not other)
        return self.layers[3 if other else 2].bias

    def forward(self, x, path=WHOLE_PATH):
        for place, index in enumerate(path):
            x = torch.tanh(self.layers[index](x))
            x = x if self.passed is None else Passing.apply(x, self.passed, place)
        return self.head(x) * self.scale


class Passing(torch.autograd.Function):
    """Does nothing forward, and says when backward comes by."""

    @staticmethod
    def forward(ctx, x, tell, place):
        ctx.tell, ctx.place = tell, place
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.tell(ctx.place)
        return gradient, None, None


def network(width=6, dtype=torch.float64, other=False):
    """The same weights wherever it is made; other: as after `freeze(other=True)`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = Net(width).to(dtype)
    model.freeze(other)
    return model


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def copied(tensors):
    return {name: None if t is None else t.detach().clone() for name, t in tensors.items()}


def squared(model, x, **options):
    return model(x, **options).square().mean()


def displaced(group):
    """Objects to keep alive: parameters made after them have other addresses on each rank, so that
    whoever walks a set of them walks in another order."""
    return [nn.Parameter(torch.empty(0)) for _ in range(5 * group.rank)]


def averaged(group, f, calls):
    """f(group, model, *rest) after a plain backward, call after call. A call: width, dtype, rest,
    each rank's batch and path, whether the frozen parameter has a gradient from before, whether
    it is `again` for the model of the call before, and whether that now has `other` parameters: one
    is frozen, one no more, and one is another tensor."""
    spare, done = displaced(group), []
    for call in calls:
        model = done[-1][0] if call["again"] else network(call["width"], call["dtype"])
        model.zero_grad()
        frozen = model.freeze(call["other"])
        if call["other"]:
            model.scale = nn.Parameter(model.scale.detach().clone())
        frozen.grad = torch.full_like(frozen, group.rank) if call["old"] else None
        path = call["paths"][group.rank]
        squared(model, call["batches"][group.rank], path=path).backward()
        weights = copied(dict(model.named_parameters()))
        group.trace.mark("call")
        f(group, model, *call["rest"])
        group.trace.mark(("over", "call"))
        done.append((model, weights, copied(gradients(model)), frozen.grad))
    spare.clear()
    return [
        {
            "gradients": first,
            "later": gradients(model),
            "weights": weights,
            "weights after": dict(model.named_parameters()),
            "frozen": frozen,
        }
        for model, weights, first, frozen in done
    ]


def watched(group):
    """Shapes of the tensors that will be written to while their all-reduce is under way."""
    touched, send = [], group.all_reduce

    def all_reduce(tensor, op="sum", async_op=False):
        work = send(tensor, op, async_op)
        if async_op:
            before, wait = [tensor.detach().clone()], work.wait

            def compared():
                if before and not torch.equal(tensor, before.pop()):
                    touched.append(list(tensor.shape))
                return wait()

            work.wait = compared
        return work

    group.all_reduce = all_reduce
    return touched


class Job:
    """A model in the submission's DDP; the relay is told when backward comes by each place."""

    def __init__(self, group, f, plan):
        self.mark, self.plan = group.trace.mark, plan
        self.model = network(plan["width"])
        self.ddp = f(self.model, group, plan["bucket_bytes"])
        self.loss = None

    def forward(self, step, rank):
        """The loss of the last microbatch, not yet backward; the others inside no_sync."""
        self.model.zero_grad(set_to_none=step["set_to_none"])
        self.mark("no_sync")
        paths = step["paths"][rank]
        *first, last = zip(step["batches"][rank], paths)
        with self.ddp.no_sync() if first else nullcontext():
            for batch, path in first:
                squared(self.ddp, batch, path=path).backward()
        self.mark(("over", "no_sync"))
        self.model.passed = lambda place: self.mark(str(place))
        batch, path = last
        self.loss = squared(self.ddp, batch, path=path)
        self.model.passed = None

    def backward(self):
        self.mark("backward")
        self.loss.backward()
        self.mark(("over", "backward"))
        self.loss = None

    def finish(self):
        self.mark("finish")
        self.ddp.finish()
        self.mark(("over", "finish"))
        return copied(gradients(self.model))


def wrapped(group, f, plans):
    """The gradients that the DDP class leaves in several models that are alive together, step by
    step. A plan: width, bucket_bytes, steps; a step: set_to_none, and each rank's microbatches and
    their paths."""
    spare, touched = displaced(group), watched(group)
    jobs, found = [Job(group, f, plan) for plan in plans], [[] for _ in plans]
    for number in range(len(plans[0]["steps"])):
        for job in jobs:
            job.forward(job.plan["steps"][number], group.rank)
        for job in jobs:
            job.backward()
        for job, steps in zip(jobs, found):
            steps.append({"gradients": job.finish(), "touched": list(touched)})
            touched.clear()
    del group.all_reduce  # the group is to be found as it was
    spare.clear()
    return found


class Recorder(nn.Module):
    """Stands for a DDP model: tells the relay of each forward and backward, and whether it would
    be sent. `alive()` counts what autograd keeps."""

    def __init__(self, model, microbatches, group, alive) -> None:
        super().__init__()
        self.module, self.sends, self.forwards = model, True, 0
        self.microbatches, self.mark, self.alive = list(microbatches), group.trace.mark, alive
        self.group = group
        self.sent = {}  # gradients as they were when a hook that sends came by
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(lambda p, name=name: self.hook(name, p))

    def hook(self, name, p):
        if self.sends:
            self.sent[name] = p.grad.detach().clone()

    def forward(self, x):
        which = self.place_of(x, next_one=self.forwards)
        self.forwards += 1
        self.mark(("forward", which, self.sends, self.alive()))
        return Passing.apply(self.module(x), self.backward_begins, which)

    def place_of(self, x, next_one):
        """Which microbatch x is; one may be there twice, and then it is the next in turn."""
        places = [i for i, m in enumerate(self.microbatches) if torch.equal(x, m)]
        return next_one if next_one in places else places[0] if places else None

    def backward_begins(self, which):
        self.mark(("backward", which, self.sends))

    def finish(self):
        self.mark("finish")

    @contextmanager
    def no_sync(self):
        self.sends = False
        yield
        self.sends = True


def accumulated(group, f, calls):
    """accumulate, call after call: each on microbatches of its own, in a list or a tuple."""
    return [accumulated_once(group, f, microbatches) for microbatches in calls]


def accumulated_once(group, f, microbatches):
    count, kept = len(microbatches), []
    alive = lambda: sum(one() is not None for one in kept)  # noqa: E731
    recorder = Recorder(network(), microbatches, group, alive)
    group.trace.mark("call")
    with kept_in(kept):
        value = f(recorder, microbatches, squared)
    group.trace.mark(("over", "call"))
    return {
        "gradients": copied(gradients(recorder.module)),
        "sent": {name: recorder.sent.get(name) for name in gradients(recorder.module)},
        "loss": value,
        "has graph": isinstance(value, torch.Tensor) and value.requires_grad,
        "length": (count, len(microbatches)),
    }
