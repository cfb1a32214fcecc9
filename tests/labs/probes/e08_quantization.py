"""The probes of lab e08: what runs in the sandbox, beside a submission on quantization.

Nothing here knows what is expected: the verdicts, in test_e08_quantization.py, are made from what
comes back. Calls come several in a row, each with other shapes.
"""

from __future__ import annotations

import weakref
from functools import partial

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from .in_turn import fresh, in_turn, storages


class Operations(TorchDispatchMode):
    """How many numbers the operations write, their names, and what they made."""

    def __init__(self):
        super().__init__()
        self.numbers, self.names, self.made = 0, set(), []

    def __torch_dispatch__(self, op, types, args=(), options=None):
        out = op(*args, **(options or {}))
        self.names.add(op.overloadpacket.__name__)
        if isinstance(out, torch.Tensor) and not op.is_view:
            self.numbers += out.numel()
            self.made.append(weakref.ref(out))
        return out


class Watch:
    """A function, and what its calls have done in PyTorch's sight."""

    def __init__(self, f):
        self.f, self.operations = f, Operations()

    def __call__(self, *given):
        with self.operations:
            return self.f(*given)

    @property
    def seen(self):
        return {"names": sorted(self.operations.names), "numbers": self.operations.numbers}


def in_a_row(f, calls):
    """Calls as `in_turn` has them, and what was seen of all of them."""
    watch = Watch(f)
    return {"calls": in_turn(watch, calls), **watch.seen}


def written(f, calls):
    """How many numbers each call writes."""
    found = []
    for call in calls:
        watch = Watch(f)
        watch(*fresh(call))
        found.append(watch.operations.numbers)
    return found


def multiplied(f, calls):
    """calls: (x, codes, scale, extra, …); `extra` (T, F) is what this integer unit adds to its sums.
    Beside each result what went through it."""
    notes, watch = [], Watch(f)

    def one(x, codes, scale, extra, *more):
        own = []
        notes.append(own)

        def multiply(a, b):
            own.append({"a": fresh(a), "b": fresh(b), "dtypes": [str(a.dtype), str(b.dtype)]})
            return (a.double() @ b.double().t() + extra).to(torch.int32)

        return watch(x, codes, scale, multiply, *more)

    return {"calls": in_turn(one, calls), "notes": notes, **watch.seen}


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
    """calls: (w, scale, bits, d_out), and whether scale asks for a gradient, too. Results are all
    alive before the first backward."""
    operations, live = Operations(), []
    for w, scale, bits, d_out, *asks in calls:
        w, scale = w.clone().requires_grad_(), scale.clone().requires_grad_(any(asks))
        before, saved = (w.detach().clone(), scale.detach().clone()), []
        own = {w.untyped_storage().data_ptr(), scale.untyped_storage().data_ptr()}
        with operations, saved_tensors_hooks(partial(noted, saved), lambda tensor: tensor):
            out = f(w, scale, bits)
        own |= storages(out)
        living = [t for t in map(call_it, operations.made) if t is not None]  # on ctx, in a list
        kept = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (*saved, *living)
        }
        kept_bytes = sum(size for place, size in kept.items() if place not in own)
        del saved, living
        operations.made = []
        live.append((w, scale, out, d_out, kept_bytes, before))
    found, forward_numbers = [], operations.numbers
    for w, scale, out, d_out, kept_bytes, before in live:
        if isinstance(out, torch.Tensor) and out.requires_grad:
            with operations:
                out.backward(d_out)
        found.append(
            {
                "out": out.detach() if isinstance(out, torch.Tensor) else out,
                "gradient": None if w.grad is None else w.grad.clone(),
                "of_scale": scale.grad is not None,
                "kept_bytes": kept_bytes,
                "unchanged": torch.equal(w.detach(), before[0]) and torch.equal(scale, before[1]),
            }
        )
    return {"calls": found, "names": sorted(operations.names), "numbers": forward_numbers}


def noted(saved, tensor):
    saved.append(tensor)
    return tensor


def call_it(reference):
    return reference()


def without_gradient(f, calls):
    """What it gives where nothing is recorded, and whether inputs stay and results are their own."""
    with torch.no_grad():
        return in_turn(f, calls)
