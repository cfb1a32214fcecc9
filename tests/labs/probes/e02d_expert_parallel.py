"""The probes of lab e02d: what runs in the sandbox, beside a submission on expert parallelism.

Nothing here knows what is expected: the verdicts, in test_e02d_expert_parallel.py, are made from
what comes back.
"""

from __future__ import annotations

import torch


def routed(f, cases):
    """(p, experts, weights), and the gradient of a sum over the weights, for each case."""
    found = []
    for x, weight, bias, k, slope in cases:
        weight, kept = weight.clone().requires_grad_(), bias.clone()
        p, experts, weights = f(x, weight, kept, k)
        grad = None
        if weights.requires_grad:
            (weights.double() * slope).sum().backward()
            grad = weight.grad
        plain = [t.detach() for t in (p, experts, weights)]
        found.append({"out": plain, "grad": grad, "bias": kept.detach()})
    return found


def shares(group, f, made):
    p, experts = made[group.rank]
    p = p.clone().requires_grad_()
    before = len(group.trace.ops)
    share = f(group, p, experts.clone())
    ops = group.trace.ops[before:]
    if share.requires_grad:
        share.backward()
    return {
        "share": share.detach(),
        "grad": p.grad,
        "sent": [(o.kind, o.payload_bytes) for o in ops],
    }


def updated(group, f, made, bias, rate):
    own = bias.clone()
    before = len(group.trace.ops)
    answer = f(group, own, made[group.rank][1].clone(), rate)
    kinds = [op.kind for op in group.trace.ops[before:]]
    return {"bias": own, "answer": answer is None, "kinds": kinds}


def planned(f, cases):
    found = []
    for experts, count, priority, factor in cases:
        order, counts = f(experts.clone(), count, priority.clone(), factor)
        found.append((order, counts))
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
    found = []
    for x, weights, order, counts, matrices, slope in cases:
        bank = Bank(matrices)
        x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
        y = f(x, weights, order, counts, bank)
        grads = [None, None]
        if y.shape == x.shape and y.requires_grad:
            grads = torch.autograd.grad((y * slope).sum(), [x, weights], allow_unused=True)
        found.append({"y": y.detach(), "grads": list(grads), "calls": bank.calls})
    return found


def exchanged(group, f, made, matrices):
    """Answers, gradients and messages of one rank; the bank holds only its own experts."""
    rows, counts, slope = made[group.rank]
    held = len(counts) // group.size
    bank = Bank(matrices[group.rank * held : (group.rank + 1) * held])
    rows = rows.clone().requires_grad_()
    before = len(group.trace.ops)
    y = f(group, bank, rows, counts.clone())
    middle = len(group.trace.ops)
    (y * slope).sum().backward()
    named = lambda ops: [(op.kind, op.sent_bytes) for op in ops]  # noqa: E731
    return {
        "y": y.detach(),
        "rows": rows.grad,
        "experts": [m.grad for m in bank.matrices],
        "forward": named(group.trace.ops[before:middle]),
        "backward": named(group.trace.ops[middle:]),
        "calls": bank.calls,
    }
