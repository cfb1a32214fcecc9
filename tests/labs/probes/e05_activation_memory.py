"""The probes of lab e05: what runs in the sandbox, beside a submission on activation memory.

Nothing here knows what is expected: the verdicts, in test_e05_activation_memory.py, are made from
what comes back.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.measure.flops import counted_flops
from minitrain.measure.memory import MemoryLedger
from minitrain.model.attention.mask import Mask


class Layers(nn.Module):
    """Four matrices with dropout in between; notes when it runs, and whether it is recorded."""

    def __init__(self, dropout):
        super().__init__()
        weights = torch.linspace(-1, 1, 4 * 36, dtype=torch.float64).view(4, 6, 6)
        self.weights, self.dropout, self.calls = nn.Parameter(weights), dropout, []

    def forward(self, x, y):
        self.calls.append(torch.is_grad_enabled())
        for weight in self.weights:
            x = nn.functional.dropout(torch.tanh(x @ weight), self.dropout)
        return x * y


def applied(f, x, y, dropout):
    """Two checkpointed functions in a row; `f` None is the plain one."""
    layers = Layers(dropout)
    call = layers if f is None else lambda *inputs: f.apply(layers, *inputs)
    x, y = (z.clone().requires_grad_() for z in (x, y))
    torch.manual_seed(11)
    out = call(call(x, y), y)
    out.square().sum().backward()
    after = torch.rand(3, dtype=torch.float64)
    return {"out": out.detach(), "x": x.grad, "y": y.grad, "weights": layers.weights.grad,
            "after": after, "calls": layers.calls}  # fmt: skip


def looked_up(f, table, places):
    """A function that also takes integers, which have no gradient."""
    table = table.clone().requires_grad_()
    if f is None:
        out = table[places].tanh()
    else:
        out = f.apply(lambda table, places: table[places].tanh(), table, places)
    out.square().sum().backward()
    return table.grad


def what_it_saves(f, x, y):
    """Bytes that forward hands to autograd, and how often and in which mode the function runs."""
    layers, saved = Layers(0.1), {}

    def note(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x, y = x.requires_grad_(), y.requires_grad_()
    with MemoryLedger(layers) as ledger, saved_tensors_hooks(note, lambda tensor: tensor):
        x.detach().mul(1), y.detach().mul(1)
        before = ledger.now_bytes
        out = f.apply(layers, x, y)
        held = ledger.now_bytes - before
    name = "" if out.grad_fn is None else type(out.grad_fn).__name__
    out.sum().backward()
    return {"saved": sum(saved.values()), "held": held, "out": out.nbytes,
            "calls": layers.calls, "name": name, "own": f"{f.__name__}Backward"}  # fmt: skip


def asked(f, names):
    """The policy's answer for each operation."""
    answers = {}
    for name in names:
        packet, overload = name.split(".")
        answers[name] = f(getattr(getattr(torch.ops.aten, packet), overload))
    return answers


class Chained:
    """A layer in numbers, and a segment, as the course's placement reads them."""

    spared_cost, selective_bytes, selective_cost = 0, float("inf"), 0

    def __init__(self, input_bytes, saved_bytes, cost):
        self.input_bytes, self.saved_bytes, self.cost = input_bytes, saved_bytes, cost


class Piece(tuple):
    start = property(lambda self: self[0])
    stop = property(lambda self: self[1])
    mode = property(lambda self: self[2])


def peak_by(f, plan, layers):
    return f([Piece(segment) for segment in plan], [Chained(*layer) for layer in layers])


def planned_by(f, layers, budget):
    """The plan as plain triples; None where it was refused."""
    try:
        return [tuple(segment) if isinstance(segment, tuple) else (segment.start, segment.stop, segment.mode)
                for segment in f([Chained(*layer) for layer in layers], budget)]  # fmt: skip
    except ValueError:
        return None


def attended(f, q, k, v):
    return f(q, k, v, Mask(0))


def pulled_back(f, *tensors):
    return f(*tensors, Mask(0))


class Sizes(TorchDispatchMode):
    """The largest tensor that an operation makes, and the operations' names."""

    def __init__(self):
        super().__init__()
        self.largest, self.names = 0, set()

    def __torch_dispatch__(self, op, types, args=(), options=None):
        out = op(*args, **(options or {}))
        self.names.add(op.overloadpacket.__name__)
        if isinstance(out, torch.Tensor) and not op.is_view:
            self.largest = max(self.largest, out.numel())
        return out


def given_to(backward, length, size=2):
    """What tiled_forward is given, or tiled_backward."""
    shape = (1, 1, length, size)
    q, k, v, d_out = (torch.randn(shape) for _ in range(4))
    rest = (d_out, torch.randn(shape[:3]) + 20, torch.randn(shape[:3]))
    return (q, k, v, *rest) if backward else (q, k, v)


def flops_of(f, length, backward):
    given = given_to(backward, length)
    return counted_flops(lambda: f(*given, Mask(0)))


def weighed(f, length, backward):
    """Largest tensor, bytes at the peak beside what is given, operations."""
    given = given_to(backward, length)
    with MemoryLedger(nn.ParameterList(), device="cpu") as ledger:
        for tensor in given:
            tensor.mul_(1)
        before = ledger.now_bytes
        ledger.reset_peak()
        f(*given, Mask(0))
        peak = ledger.peak_bytes - before
    with Sizes() as sizes:
        f(*given, Mask(0))
    return {"largest": sizes.largest, "peak": peak, "names": sorted(sizes.names)}
