"""The probes of lab e08: what runs in the sandbox, beside a submission on quantization.

Nothing here knows what is expected: the verdicts, in test_e08_quantization.py, are made from what
comes back. Calls come several in a row, each with other shapes.
"""

from __future__ import annotations

import weakref

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

    def watched(self, f):
        """f, whose calls are in its sight."""

        def inside(*given):
            with self:
                return f(*given)

        return inside

    @property
    def seen(self):
        return {"names": sorted(self.names), "numbers": self.numbers}


def in_a_row(f, calls):
    """Calls as `in_turn` has them, and what was seen of all of them."""
    operations = Operations()
    return {"calls": in_turn(operations.watched(f), calls), **operations.seen}


def written(f, calls):
    """How many numbers each call writes."""
    return [in_a_row(f, [call])["numbers"] for call in calls]


def multiplied(f, calls):
    """calls: (x, codes, scale, extra, threshold); `extra` (T, F) is what this integer unit adds to
    its sums. Beside each result what went through it."""
    notes, operations = [], Operations()
    f = operations.watched(f)

    def one(x, codes, scale, extra, threshold):
        own = []
        notes.append(own)

        def multiply(a, b):
            own.append({"a": fresh(a), "dtypes": [str(a.dtype), str(b.dtype)]})
            return (a.double() @ b.double().t() + extra).to(torch.int32)

        return f(x, codes, scale, multiply, *([] if threshold == 6.0 else [threshold]))

    return {"calls": in_turn(one, calls), "notes": notes, **operations.seen}


def smoothed(f, calls):
    """calls: (norm's weight, linears' weights, max |x|, …), all alive at once."""
    live = []
    for scale, weights, max_abs, *more in calls:
        norm, linears = (
            nn.RMSNorm(len(scale)),
            [nn.Linear(*w.mT.shape, bias=False) for w in weights],
        )
        for layer, weight in zip((norm, *linears), (scale, *weights)):
            layer.weight = nn.Parameter(weight.clone())
        live.append((norm, linears, max_abs.clone(), *more))
    return [one_smoothed(f, *case) for case in live]


def one_smoothed(f, norm, linears, max_abs, *more):
    before = [layer.weight for layer in (norm, *linears)]
    given, places = max_abs.clone(), [p.data_ptr() for p in before]
    s = f(norm, linears, max_abs, *more)
    now = [layer.weight for layer in (norm, *linears)]
    is_leaf = all(p.requires_grad and p.is_leaf and p.grad is None for p in now)
    is_same = all(one is other for one, other in zip(now, before))
    return {
        "s": s.detach() if isinstance(s, torch.Tensor) else s,
        "weights": [p.detach().clone() for p in now],
        "same": is_same and is_leaf and [p.data_ptr() for p in now] == places,
        "max_abs": torch.equal(max_abs, given),
    }


def trained_through(f, calls):
    """calls: (w, scale, bits, d_out, whether scale asks for a gradient). Results are all alive
    before the first backward."""
    operations, live = Operations(), []
    for w, scale, bits, d_out, asks in calls:
        given = w.clone().requires_grad_(), scale.clone().requires_grad_(asks)
        out, kept_bytes = kept_by(operations, f, *given, bits)
        live.append((*given, (w, scale), out, d_out, kept_bytes))
    found, forward = [], operations.seen
    for w, scale, before, out, d_out, kept_bytes in live:
        if isinstance(out, torch.Tensor) and out.requires_grad:
            out.backward(d_out)
        found.append(
            {
                "what is left of w": out.detach() if isinstance(out, torch.Tensor) else out,
                "the gradient of w": w.grad,
                "of_scale": scale.grad is not None,
                "kept_bytes": kept_bytes,
                "unchanged": all(map(torch.equal, (w.detach(), scale.detach()), before)),
            }
        )
    return {"calls": found, **forward}


def kept_by(operations, f, *given):
    """What it gives, and the bytes that wait for backward: saved, on ctx, in a list."""
    saved, operations.made = [], []

    def noted(tensor):
        saved.append(tensor)
        return tensor

    with saved_tensors_hooks(noted, lambda tensor: tensor):
        out = operations.watched(f)(*given)
    living = [tensor for made in operations.made if (tensor := made()) is not None]
    kept = [tensor.untyped_storage() for tensor in (*saved, *living)]
    own = storages([out, *(part for part in given if isinstance(part, torch.Tensor))])
    sizes = {part.data_ptr(): part.nbytes() for part in kept if part.data_ptr() not in own}
    return out, sum(sizes.values())
