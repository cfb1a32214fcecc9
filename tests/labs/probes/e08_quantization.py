"""The probes of lab e08: what runs in the sandbox, beside a submission on quantization.

Nothing here knows what is expected: the verdicts, in test_e08_quantization.py, are made from what
comes back. Calls come several in a row, each with other shapes.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from .in_turn import fresh, in_turn


class Operations(TorchDispatchMode):
    """How many numbers the operations write, and the operations' names."""

    def __init__(self):
        super().__init__()
        self.numbers, self.names = 0, set()

    def __torch_dispatch__(self, op, types, args=(), options=None):
        out = op(*args, **(options or {}))
        self.names.add(op.overloadpacket.__name__)
        if isinstance(out, torch.Tensor) and not op.is_view:
            self.numbers += out.numel()
        return out


def in_a_row(f, calls):
    """Calls as `in_turn` has them, and the names of all operations."""
    with Operations() as operations:
        results = in_turn(f, calls)
    return {"calls": results, "names": sorted(operations.names)}


def written(f, calls):
    """How many numbers each call writes."""
    found = []
    for call in calls:
        given = fresh(call)
        with Operations() as operations:
            f(*given)
        found.append(operations.numbers)
    return found


def multiplied(f, calls):
    """calls: (x, codes, scale, …). Beside each result what went through the integer matmul."""
    notes = []

    def one(x, codes, scale, *more):
        own = []
        notes.append(own)

        def multiply(a, b):
            own.append({"a": fresh(a), "b": fresh(b), "dtypes": [str(a.dtype), str(b.dtype)]})
            return (a.double() @ b.double().t()).to(torch.int32)

        return f(x, codes, scale, multiply, *more)

    results = in_a_row(one, calls)
    return {**results, "notes": notes}


def smoothed(f, calls):
    """calls: (norm's weight, linears' weights, max |x|, inputs, …): a norm and what reads it, all
    alive at once, before and after."""
    live = []
    for scale, weights, max_abs, x, *more in calls:
        norm = nn.RMSNorm(len(scale), eps=1e-6)
        norm.weight = nn.Parameter(scale.clone())
        linears = [nn.Linear(len(scale), len(w), bias=False) for w in weights]
        for linear, weight in zip(linears, weights):
            linear.weight = nn.Parameter(weight.clone())
        live.append((norm, linears, max_abs.clone(), x.clone(), more))
    return [one_smoothed(f, *case) for case in live]


def one_smoothed(f, norm, linears, max_abs, x, more):
    parameters = [norm.weight, *(linear.weight for linear in linears)]
    given, places = max_abs.clone(), [p.data_ptr() for p in parameters]
    before = [linear(norm(x)).detach() for linear in linears]
    s = f(norm, linears, max_abs, *more)
    now = [norm.weight, *(linear.weight for linear in linears)]
    return {
        "s": s.detach() if isinstance(s, torch.Tensor) else s,
        "weights": [p.detach().clone() for p in now],
        "same": all(one is other for one, other in zip(now, parameters)),
        "in_place": [p.data_ptr() for p in now] == places,
        "leaves": all(p.requires_grad and p.is_leaf and p.grad is None for p in now),
        "max_abs": torch.equal(max_abs, given),
        "before": before,
        "after": [linear(norm(x)).detach() for linear in linears],
    }


def trained_through(f, calls):
    """calls: (w, scale, bits, d_out). Results are all alive before the first backward."""
    names, live = set(), []
    for w, scale, bits, d_out in calls:
        w, scale, kept = w.clone().requires_grad_(), scale.clone(), []
        own = {w.untyped_storage().data_ptr(), scale.untyped_storage().data_ptr()}

        def note(tensor, own=own, kept=kept):
            if tensor.untyped_storage().data_ptr() not in own:
                kept.append(
                    (tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
                )
            return tensor

        with Operations() as operations, saved_tensors_hooks(note, lambda tensor: tensor):
            out = f(w, scale, bits)
        names |= operations.names
        live.append((w, scale, out, d_out, dict(kept), (w.detach().clone(), scale.clone())))
    found = []
    for w, scale, out, d_out, kept, before in live:
        has_gradient = isinstance(out, torch.Tensor) and out.requires_grad
        if has_gradient:
            with Operations() as operations:
                out.backward(d_out)
            names |= operations.names
        found.append(
            {
                "out": out.detach() if isinstance(out, torch.Tensor) else out,
                "gradient": None if w.grad is None else w.grad.clone(),
                "kept_bytes": sum(kept.values()),
                "unchanged": torch.equal(w.detach(), before[0]) and torch.equal(scale, before[1]),
            }
        )
    return {"calls": found, "names": sorted(names)}


def without_gradient(f, calls):
    """What it gives where nothing is recorded, and whether inputs stay and results are their own."""
    with torch.no_grad():
        return in_turn(f, calls)
