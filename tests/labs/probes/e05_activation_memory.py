"""The probes of lab e05: what runs in the sandbox, beside a submission on activation memory.

Nothing here knows what is expected: the verdicts, in test_e05_activation_memory.py, are made from
what comes back.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.measure.flops import counted_flops
from minitrain.measure.memory import MemoryLedger
from minitrain.model.attention.mask import Mask

from .in_turn import in_turn


class Layers(nn.Module):
    """Matrices with dropout in between; notes whether each run is recorded, and the modules that
    called it."""

    def __init__(self, dropout, size=1.0):
        super().__init__()
        weights = torch.linspace(-size, size, 4 * 36, dtype=torch.float64).view(4, 6, 6)
        self.weights, self.dropout = nn.Parameter(weights), dropout
        self.calls, self.callers = [], set()

    def forward(self, x, y):
        self.calls.append(torch.is_grad_enabled())
        self.callers |= modules_above(sys._getframe())
        for weight in self.weights:
            x = nn.functional.dropout(torch.tanh(x @ weight), self.dropout)
        return x * y


def modules_above(frame):
    """Of a frame and all that called it."""
    return set() if frame is None else {frame.f_globals["__name__"], *modules_above(frame.f_back)}


def ways_of(f, layers, result):
    """How the layers were run, and the node that their result hangs on."""
    node = "" if result.grad_fn is None else type(result.grad_fn).__name__
    own = "" if f is None else f"{f.__name__}Backward"
    return {"calls": layers.calls, "callers": sorted(layers.callers), "node": node, "own": own}


def applied(f, x, y, d_out, dropout):
    """One function on another's result, and once more on other inputs before the backward of either;
    `f` None is the plain functions. The generator moves on in between."""
    one, two = Layers(dropout), Layers(dropout, 0.5)
    call = (lambda function, *inputs: function(*inputs)) if f is None else f.apply
    x, y = (z.clone().requires_grad_() for z in (x, y))
    d_out = d_out.clone()
    torch.manual_seed(11)
    out = call(two.forward, call(one.forward, x, y), y)
    first = out.detach().clone()
    other = call(one.forward, y, y)
    torch.rand(3)
    for result in (out, other):
        result.backward(d_out)
    after = torch.rand(3, dtype=torch.float64)
    gradients = {"x": x.grad, "y": y.grad, "weights": one.weights.grad, "others": two.weights.grad}
    return {"out": first, "later": out.detach(), "other": other.detach(), "after": after,
            "given": [x.detach(), y.detach(), d_out], "shares": False, **gradients,
            "one": ways_of(f, one, other), "two": ways_of(f, two, out)}  # fmt: skip


def looked_up(f, table, places, seen):
    """The gradient of a table; the function also takes integers and a mask, which have none."""
    table = table.clone().requires_grad_()

    def look_up(table, places, seen):
        return table[places].tanh() * seen[:, None]

    call = look_up if f is None else lambda *inputs: f.apply(look_up, *inputs)
    call(table, places, seen).square().sum().backward()
    return table.grad


def what_it_saves(f, x, y):
    """Bytes that forward hands to autograd, and bytes that are held when it is done."""
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
    out.sum().backward()
    ways = ways_of(f, layers, out)
    return {"saved": sum(saved.values()), "held": held, "out": out.nbytes, **ways}


INVENTED = "_scaled_dot_product_another_attention"  # a fused kernel that no machine has


def asked(f, names):
    """The policy's answer for each operation, and when it is asked again in the other order."""
    with torch.library._scoped_library("aten", "FRAGMENT") as aten:
        aten.define(f"{INVENTED}(Tensor query, Tensor key, Tensor value) -> Tensor")
        ops = {name: getattr(getattr(torch.ops.aten, name.split(".")[0]), name.split(".")[1]) for name in names}  # fmt: skip
        return {name: f(ops[name]) for name in names}, {name: f(ops[name]) for name in reversed(names)}  # fmt: skip


class Layer(tuple):
    """A layer in numbers (input_bytes, saved_bytes, cost), as the course's placement reads it."""

    spared_cost, selective_bytes, selective_cost = 0, float("inf"), 0
    input_bytes = property(lambda self: self[0])
    saved_bytes = property(lambda self: self[1])
    cost = property(lambda self: self[2])


class Segment(tuple):
    start = property(lambda self: self[0])
    stop = property(lambda self: self[1])
    mode = property(lambda self: self[2])


def peaks_by(f, calls):
    """calls: (plan, layers), as plain triples."""
    return in_turn(f, [([*map(Segment, plan)], [*map(Layer, layers)]) for plan, layers in calls])


def planned_by(f, calls):
    """calls: (layers, budget), layers as plain triples; out: the plan, so too, or None if refused."""

    def planned(layers, budget):
        try:
            return list(map(triple, f(layers, budget)))
        except ValueError:
            return None

    return in_turn(planned, [([*map(Layer, layers)], budget) for layers, budget in calls])


def triple(segment):
    return tuple(segment) if isinstance(segment, tuple) else (segment.start, segment.stop, segment.mode)  # fmt: skip


def attended(f, calls):
    """calls: tensors (B, L, H, …) and a window; f gets (B, H, L, …), views as a model's heads are."""

    def masked(*arguments):
        *tensors, window = arguments
        return f(*tensors, Mask(0, window))

    return in_turn(masked, [(*(z.transpose(1, 2) for z in call[:-1]), call[-1]) for call in calls])


class Operations(TorchDispatchMode):
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


def given_to(backward, length, size):
    """What tiled_forward is given, or tiled_backward."""
    shape = (1, 1, length, size)
    q, k, v, d_out = (torch.randn(shape) for _ in range(4))
    rest = (d_out, torch.randn(shape[:3]) + 20, torch.randn(shape[:3])) if backward else ()
    return (q, k, v, *rest)


def weighed(f, calls, backward):
    """For each (tokens, head size, window): the largest tensor, FLOPs and operations."""
    found = []
    for length, size, window in calls:
        given = given_to(backward, length, size)
        with Operations() as seen:
            flops = counted_flops(lambda given=given, window=window: f(*given, Mask(0, window)))
        found.append({"largest": seen.largest, "flops": flops, "names": sorted(seen.names)})
    return found


def peaks(f, lengths, backward):
    """Bytes at the peak, beside what is given."""
    found = []
    for length in lengths:
        given = given_to(backward, length, 2)
        with MemoryLedger(nn.ParameterList(), device="cpu") as ledger:
            for tensor in given:
                tensor.mul_(1)
            before = ledger.now_bytes
            ledger.reset_peak()
            f(*given, Mask(0))
            found.append(ledger.peak_bytes - before)
    return found
