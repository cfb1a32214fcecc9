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
        self.layers[2].bias.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(width, OUT)
        self.passed = None  # told a place on the path when backward comes by, above that layer

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


def network(width=6, dtype=torch.float64):
    """The same weights wherever it is made."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return Net(width).to(dtype)


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


def sent_since(group, begin):
    return [(op.kind, op.payload_bytes) for op in group.trace.ops[begin:] if op.payload_bytes]


def averaged(group, f, calls):
    """f(group, model, *rest) after a plain backward, call after call. A call: width, dtype, rest,
    each rank's batch and path, whether the frozen parameter has a gradient from before, and
    whether it is `again` for the model of the call before."""
    spare, done = displaced(group), []
    for call in calls:
        model = done[-1][0] if call["again"] else network(call["width"], call["dtype"])
        model.zero_grad()
        frozen = model.layers[2].bias
        frozen.grad = torch.full_like(frozen, group.rank) if call["old"] else None
        path = call["paths"][group.rank]
        squared(model, call["batches"][group.rank], path=path).backward()
        begin, weights = len(group.trace.ops), copied(dict(model.named_parameters()))
        f(group, model, *call["rest"])
        sent = sent_since(group, begin)
        done.append((model, weights, copied(gradients(model)), sent, frozen.grad))
    spare.clear()
    return [
        {
            "gradients": first,
            "later": gradients(model),
            "weights": weights,
            "weights after": dict(model.named_parameters()),
            "frozen": frozen,
            "sent": sent,
        }
        for model, weights, first, sent, frozen in done
    ]


class Job:
    """A model in the submission's DDP, and what its all-reduces had come to at each place."""

    def __init__(self, group, f, plan):
        self.group, self.plan = group, plan
        self.model = network(plan["width"])
        self.ddp = f(self.model, group, plan["bucket_bytes"])
        self.begin, self.seen, self.loss = 0, {}, None

    def forward(self, step):
        """The loss of the last microbatch, not yet backward; the others inside no_sync."""
        self.model.zero_grad(set_to_none=step["set_to_none"])
        self.begin, self.seen = len(self.group.trace.ops), {}
        paths = step["paths"][self.group.rank]
        *first, last = zip(step["batches"][self.group.rank], paths)
        with self.ddp.no_sync() if first else nullcontext():
            for batch, path in first:
                squared(self.ddp, batch, path=path).backward()
        self.look("accumulated")
        self.model.passed = self.look
        batch, path = last
        self.loss = squared(self.ddp, batch, path=path)
        self.model.passed = None

    def look(self, place):
        ops = [op for op in self.group.trace.ops[self.begin :] if op.payload_bytes]
        waited = [op for op in ops if op.waited is not None]
        self.seen[place] = (len(ops), len(waited))

    def backward(self):
        self.begin = len(self.group.trace.ops)
        self.loss.backward()
        self.look("returned")
        self.loss = None

    def finish(self):
        self.ddp.finish()
        return copied(gradients(self.model))


def wrapped(group, f, plans):
    """The DDP class, on several models that are alive together, step by step. A plan: width,
    bucket_bytes, steps; a step: set_to_none, and each rank's microbatches and their paths."""
    spare = displaced(group)
    jobs, found = [Job(group, f, plan) for plan in plans], [[] for _ in plans]
    for number in range(len(plans[0]["steps"])):
        for job in jobs:
            job.forward(job.plan["steps"][number])
        sent = []
        for job in jobs:
            job.backward()
            sent.append(job.begin)
        stops = [*sent[1:], None]
        for job, steps, start, stop in zip(jobs, found, sent, stops):
            own = {"gradients": job.finish(), "seen": job.seen}
            ops = [op for op in group.trace.ops[start:stop] if op.payload_bytes]
            own["sent"] = [(op.kind, op.payload_bytes) for op in ops]
            own["all waited"] = all(op.waited is not None for op in ops)
            steps.append(own)
    spare.clear()
    return found


class Recorder(nn.Module):
    """Stands for a DDP model: notes each forward and backward, and whether it would be sent."""

    def __init__(self, model, microbatches) -> None:
        super().__init__()
        self.module, self.sends, self.log = model, True, []
        self.microbatches, self.kept = list(microbatches), []
        self.sent = {}  # gradients as they were when a hook that sends came by
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(lambda p, name=name: self.hook(name, p))

    def hook(self, name, p):
        if self.sends:
            self.sent[name] = p.grad.detach().clone()

    def forward(self, x):
        alive = sum(kept() is not None for kept in self.kept)
        which = self.place_of(x, next_one=sum("forward" in entry for entry in self.log))
        self.log.append({"forward": which, "sends": self.sends, "alive": alive})
        return Passing.apply(self.module(x), self.backward_begins, which)

    def place_of(self, x, next_one):
        """Which microbatch x is; one may be there twice, and then it is the next in turn."""
        places = [i for i, m in enumerate(self.microbatches) if torch.equal(x, m)]
        return next_one if next_one in places else places[0] if places else None

    def backward_begins(self, which):
        self.log.append({"backward": which, "sends": self.sends})

    def finish(self):
        self.log.append({"finish": True})

    @contextmanager
    def no_sync(self):
        self.sends = False
        yield
        self.sends = True


def accumulated(f, calls):
    """accumulate, call after call: each on microbatches of its own, in a list or a tuple."""
    return [accumulated_once(f, microbatches) for microbatches in calls]


def accumulated_once(f, microbatches):
    recorder = Recorder(network(), microbatches)
    count = len(microbatches)
    with kept_in(recorder.kept):
        value = f(recorder, microbatches, squared)
    return {
        "gradients": copied(gradients(recorder.module)),
        "sent": {name: recorder.sent.get(name) for name in gradients(recorder.module)},
        "log": recorder.log,
        "loss": value,
        "has graph": isinstance(value, torch.Tensor) and value.requires_grad,
        "length": (count, len(microbatches)),
    }
