"""The probes of lab e02d: what runs in the sandbox, beside a submission on expert parallelism.

Nothing here knows what is expected: the verdicts, in test_e02d_expert_parallel.py, are made from
what comes back. Where gradients are asked for, all calls are made before the first backward.
"""

from __future__ import annotations

from functools import partial

import torch

from .in_turn import fresh, in_turn, storages
from .in_turn import in_turn_on_ranks as in_turn_on_ranks  # a probe of its own


def gradients(out, slope, leaves):
    """Of Σ slope·out; None where nothing flows."""
    if out.shape != slope.shape or not out.requires_grad:
        return [None] * len(leaves)
    slope = slope.to(out.dtype)
    return list(torch.autograd.grad(out, leaves, slope, retain_graph=True, allow_unused=True))


def routed(f, cases):
    """The gradients of x and weight that come by the weights, and those that come by p."""
    live = []
    for x, weight, bias, k, *slopes in cases:
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        p, experts, weights = f(*leaves, bias, k)
        live.append((experts, [weights, p], slopes, leaves))
    return [
        {"experts": experts, "grads": [gradients(*one, leaves) for one in zip(outs, slopes)]}
        for experts, outs, slopes, leaves in live
    ]


def updated(group, f, calls):
    """update_bias, call after call; of the first one's bias also what a step by the last one's
    experts makes of it."""
    live = []

    def step(bias, experts, rate):
        live.append(bias)
        return f(group, bias, experts, rate)

    found = in_turn(step, calls[group.rank])
    before, (_, experts, rate) = fresh(live[0]), fresh(calls[group.rank][-1])
    step(live[0], experts, rate)
    found[0]["second"] = (before, fresh(live[0]))
    return found


def marked(group, way, f, *given):
    """f(*given); the relay is told when it begins and when it is over."""
    group.trace.mark(way)
    out = f(*given)
    group.trace.mark(("over", way))
    return out


def shares(group, f, calls):
    """The gradient of this rank's share with respect to its p."""
    live = []
    for p, experts in calls[group.rank]:
        p = p.clone().requires_grad_()
        live.append((p, marked(group, "forward", f, group, p, experts.clone())))
    found = []
    for p, share in live:
        (grad,) = marked(group, "backward", gradients, share, torch.ones_like(share), [p])
        found.append({"grad": grad})
    return found


class Bank:
    """E experts that are not linear; it notes what it was given."""

    def __init__(self, matrices):
        self.matrices = [m.clone().requires_grad_() for m in matrices]
        self.calls = []

    def __call__(self, rows, counts):
        sizes = [int(n) for n in counts]
        self.calls.append((rows.detach().clone(), sizes))
        if sum(sizes) != len(rows) or len(sizes) != len(self.matrices):
            raise ValueError(
                f"experts was given {len(rows)} rows and counts {sizes} for {len(self.matrices)} experts"
            )
        parts = [torch.tanh(part @ m) for part, m in zip(rows.split(sizes), self.matrices)]
        return torch.cat(parts) if parts else rows


def mixed(f, cases):
    """Memory that nobody wrote into is NaN, and not 0 by chance."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return in_turn(partial(answered, f), cases)
    finally:
        torch.use_deterministic_algorithms(False)


def answered(f, x, weights, order, counts, matrices):
    """y, and what the experts were given."""
    bank = Bank(matrices)
    return {"y": f(x, weights, order, counts, bank), "calls": bank.calls}


def mixed_gradients(f, cases):
    """The gradients of x and of the weights."""
    live = []
    for x, weights, order, counts, matrices, slope in cases:
        leaves = [x.clone().requires_grad_(), weights.clone().requires_grad_()]
        live.append((f(*leaves, order, counts, Bank(matrices)), slope, leaves))
    return [gradients(*one) for one in live]


def exchanged(group, f, calls):
    """Answers and gradients of one rank; the bank holds only its own experts."""
    live = []
    for rows, counts, slope, matrices in calls[group.rank]:
        held = len(counts) // group.size
        bank = Bank(matrices[group.rank * held : (group.rank + 1) * held])
        rows, counts = rows.clone().requires_grad_(), counts.clone()
        y = marked(group, "forward", f, group, bank, rows, counts)
        notes = {
            "out": y.detach().clone(),
            "given": (rows.detach().clone(), counts.clone()),
            "shares": bool(storages(y) & storages([rows, counts])),
        }
        live.append((y, slope, rows, bank, notes))
    return [went_back(group, *one) for one in live]


def went_back(group, y, slope, rows, bank, notes):
    """What is known of a call after its backward."""
    grad, *grads = marked(group, "backward", gradients, y, slope, [rows, *bank.matrices])
    back = {"rows": grad, "experts": grads}
    return {**notes, **back, "later": y.detach(), "calls": bank.calls}
