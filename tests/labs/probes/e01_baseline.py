"""The probes of lab e01: what runs in the sandbox, beside a submission on the single-device baseline.

Nothing here knows what is expected: the verdicts, in test_e01_baseline.py, are made from
what comes back. All calls of a check are made in one process.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from .in_turn import fresh, in_turn
from .kept import kept_in


def answers(f, calls):
    """What f gives for each tuple of arguments."""
    return [f(*call) for call in calls]


def turned(f, calls):
    """calls: (x, cos, sin); as of `in_turn`."""
    return in_turn(lambda x, cos, sin: f(x, SimpleNamespace(cos=cos, sin=sin)), calls)


def turned_gradients(f, calls):
    turn = lambda x, cos, sin: f(x, SimpleNamespace(cos=cos, sin=sin))  # noqa: E731
    return gradients(turn, calls, of=1)


class Used(TorchFunctionMode):
    """Notes the names of torch's functions that are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.add(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


def attended(f, calls):
    """calls: (q, k, v); as of `in_turn`, and the names of the functions that were used."""
    with Used() as used:
        rows = in_turn(f, calls)
    return {"rows": rows, "used": sorted(used.names)}


def attended_gradients(f, calls):
    with Used() as used:
        found = gradients(f, calls, of=3)
    return {"rows": found, "used": sorted(used.names)}


def gradients(f, calls, of):
    """The gradients of the first `of` arguments; every call is made before one goes backward."""
    live = []
    for call in calls:
        given = [z.requires_grad_() if i < of else z for i, z in enumerate(fresh(call))]
        live.append((given, f(*given)))
    for _, out in live:
        out.pow(3).sum().backward()
    return [[z.grad for z in given[:of]] for given, _ in live]


class Tiny(nn.Module):
    """Logits for each token; takes what the course's model takes, and notes when it is used."""

    def __init__(self, scale):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11)
        self.scale, self.events = scale, []
        self.kept = []  # references to what autograd keeps, which keep nothing alive
        self.made = []  # and to the memory of the logits

    alive = 0  # tensors of earlier microbatches in memory when one began, at most
    outputs = 0  # and logits of those before the last, whose name may still be in use

    def forward(self, tokens, documents=None, positions=None):
        before = list(self.kept)
        is_packed = documents is not None and positions is not None
        place = (documents + 2 * positions)[..., None] if is_packed else 0
        logits = self.scale * self.head(torch.tanh(self.embed(tokens) + 0.1 * place))
        self.outputs = max(self.outputs, sum(not made.expired() for made in self.made[:-1]))
        self.made.append(StorageWeakRef(logits.untyped_storage()))
        self.events.append(("forward", list(tokens.shape)))
        self.alive = max(self.alive, sum(kept() is not None for kept in before))
        if logits.requires_grad:
            logits.register_hook(lambda _: self.events.append(("backward", list(tokens.shape))))
        return logits


def tiny(scale=1.0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Tiny(scale).double()


class Spy(torch.optim.SGD):
    """Keeps the gradients that step() saw; none is zero. It has a group for each two parameters."""

    def __init__(self, parameters):
        parameters = list(parameters)
        pairs = [parameters[i : i + 2] for i in range(0, len(parameters), 2)]
        super().__init__([{"params": pair} for pair in pairs], lr=0.1)
        self.seen = []

    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.seen.append(
            [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
        )
        return super().step(closure)


def stepped(f, steps):
    """steps: (microbatches, the scale of the logits, clip or nothing); each on a model of its own."""
    return [one_step(f, *step) for step in steps]


def state_of(gradient):
    if gradient is None:
        return "none"
    return "numbers" if gradient.any() else "zeros"


def one_step(f, batches, scale, *clip):
    """batches: (tokens, targets, documents, positions) of each."""
    model = tiny(scale)
    optimizer = Spy(model.parameters())
    names = ("tokens", "targets", "documents", "positions")
    made = [SimpleNamespace(**dict(zip(names, fresh(batch)))) for batch in batches]
    with kept_in(model.kept):
        f(model, optimizer, made, *clip)
    left = [state_of(p.grad) for p in model.parameters()]
    after = [tuple(getattr(batch, name, None) for name in names) for batch in made]
    return {
        "alive": model.alive,
        "seen": optimizer.seen,
        "outputs": model.outputs,
        "left": left,
        "events": model.events,
        "batches": after,
        "weights": [p.detach() for p in model.parameters()],
    }
