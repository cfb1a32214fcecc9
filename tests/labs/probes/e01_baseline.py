"""The probes of lab e01: what runs in the sandbox, beside a submission on the single-device baseline.

Nothing here knows what is expected: the verdicts, in test_e01_baseline.py, are made from
what comes back.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn


def with_shape(f, shape, *rest):
    return f(SimpleNamespace(**shape), *rest)


def with_shape_between(f, before, shape, *rest):
    return f(*before, SimpleNamespace(**shape), *rest)


def plainly(f, *args):
    return f(*args)


def turned(f, x, cos, sin):
    return f(x, SimpleNamespace(cos=cos, sin=sin))


def attended(f, q, k, v):
    """The output and the gradients."""
    q, k, v = (z.clone().requires_grad_() for z in (q, k, v))
    out = f(q, k, v)
    out.square().sum().backward()
    return {"out": out.detach(), "q": q.grad, "k": k.grad, "v": v.grad}


class Tiny(nn.Module):
    """Logits for each token; takes what the course's model takes."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11)

    def forward(self, tokens, documents=None, positions=None):
        place = 0 if documents is None or positions is None else (documents + positions)[..., None]
        return self.head(torch.tanh(self.embed(tokens) + 0.1 * place))


def tiny():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Tiny().double()


class Spy(torch.optim.SGD):
    """Keeps the gradients that step() saw."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.seen = []

    def step(self, closure=None):
        self.seen.append([p.grad.clone() for p in self.param_groups[0]["params"]])
        return super().step(closure)


def stepped(f, batches, clip):
    model = tiny()
    optimizer = Spy(model.parameters())
    made = [
        SimpleNamespace(tokens=t, targets=y, documents=d, positions=p) for t, y, d, p in batches
    ]
    f(model, optimizer, made, clip)
    left = [p.grad is None or not p.grad.any() for p in model.parameters()]
    return {"seen": optimizer.seen, "left": all(left)}
