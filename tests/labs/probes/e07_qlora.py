"""The probes of lab e07: what runs in the sandbox, beside a submission on QLoRA.

Nothing here knows what is expected: the verdicts, in test_e07_qlora.py, are made from what comes
back.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minitrain.measure.flops import counted_flops
from minitrain.measure.memory import MemoryLedger

from .in_turn import in_turn


def levels_of(f, calls):
    """calls: (bits,)"""
    return in_turn(f, calls)


def detached(value):
    """The same without graphs, and whether there was one."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, (list, tuple)):
        return tuple(map(detached, value))
    if isinstance(value, dict):
        return {key: detached(item) for key, item in value.items()}
    return value


def in_a_graph(value):
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(value))


def results_of(f, calls):
    """What f gave, call by call, without graphs; `graphs`: whether each had one."""
    graphs = []

    def called(*arguments):
        out = f(*arguments)
        graphs.append(in_a_graph(out))
        return detached(out)

    calls = [tuple(nn.Parameter(a) if is_weight(a) else a for a in call) for call in calls]
    return {"calls": [plain_call(call) for call in in_turn(called, calls)], "graphs": graphs}


def is_weight(value):
    """A matrix goes in as a parameter, as a layer has it; all else as it is."""
    return isinstance(value, Tensor) and value.ndim == 2 and value.is_floating_point()


def plain_call(call):
    return {**call, "given": [detached(argument) for argument in call["given"]]}


class LargestMade(TorchDispatchMode):
    """The bytes of the largest tensor that an operation makes."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, op, types, args=(), options=None):
        out = op(*args, **(options or {}))
        if isinstance(out, Tensor) and not op.is_view:
            self.bytes = max(self.bytes, out.numel() * out.element_size())
        return out


def largest_made(f, x, levels, size):
    with LargestMade() as largest:
        f(x, levels, size)
    return largest.bytes


def held_by(f, scales, levels, size):
    """The bytes of the memory behind each tensor, each once."""
    found, seen = {}, set()
    for name, tensor in f(scales, levels, size).items():
        storage = tensor.untyped_storage()
        found[str(name)] = 0 if storage.data_ptr() in seen else storage.nbytes()
        seen.add(storage.data_ptr())
    return found


class Weight:
    """A matrix that is asked for its floats, and notes when: whether backward is running."""

    def __init__(self, matrix):
        self.matrix, self.asked, self.backward = matrix, [], False

    def dequantize(self):
        self.asked.append(self.backward)
        return self.matrix.clone()


class Layer:
    def __init__(self, matrix):
        self.weight = Weight(matrix)
        self.out_features, self.in_features = matrix.shape


def multiplied(f, x, first, second, dy):
    """Two layers in a row, and the first once more on other numbers, all before any backward; `f`
    None multiplies plainly."""
    layers = Layer(first), Layer(second)
    call = plainly if f is None else f.apply
    given = x, dy = x.clone().requires_grad_(), dy.clone()
    out = call(call(x, layers[0]), layers[1])
    early = out.detach().clone()
    other_x = (x.detach().flip(-1) + 1).requires_grad_()
    other = call(other_x, layers[0])
    for layer in layers:
        layer.weight.backward = True
    (dx,) = torch.autograd.grad(out, x, dy, allow_unused=True)
    (other_dx,) = torch.autograd.grad(other.sum(), other_x, allow_unused=True)
    return {
        "out": early, "later": out.detach(), "other": other.detach(), "dx": dx,
        "other_dx": other_dx, "asked": [layer.weight.asked for layer in layers],
        "node": node_of(out), "own": "" if f is None else f"{f.__name__}Backward",
        "given": [z.detach() for z in given], "shares": False,
    }  # fmt: skip


def plainly(x, layer):
    return x @ layer.weight.dequantize().to(x.dtype).T


def node_of(out):
    return "" if out.grad_fn is None else type(out.grad_fn).__name__


def without_gradient(f, x, matrix):
    """Of an input that needs none, and under no_grad: whether the results have a graph."""
    layer = Layer(matrix)
    with torch.no_grad():
        quiet = f.apply(x.clone().requires_grad_(), layer)
    return {"plain": f.apply(x, layer).requires_grad, "quiet": quiet.requires_grad}


def what_waits(f, x, matrix):
    """Bytes that forward hands to autograd, bytes that are held after it, and FLOPs both ways."""
    layer, saved = Layer(matrix), {}

    def note(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x.requires_grad_()
    with MemoryLedger(nn.ParameterList(), device="cpu") as ledger:
        x.detach().mul(1), layer.weight.matrix.mul(1)
        before = ledger.now_bytes
        between = x * 1  # as a layer before it hands on: it lives for as long as someone keeps it
        with saved_tensors_hooks(note, lambda tensor: tensor):
            out = f.apply(between, layer)
        del between
        held = ledger.now_bytes - before
    node = node_of(out)
    flops = counted_flops(lambda: f.apply(x, layer).sum().backward())
    return {
        "saved": sum(saved.values()), "held": held, "out": out.nbytes, "flops": flops,
        "node": node, "own": f"{f.__name__}Backward",
    }  # fmt: skip


def paged_by(f, tables):
    """tables: (capacity, page bytes, touches). A touch is (key, bytes, write), or (None, count, _)
    for evict_to. All tables live at once, and are touched in turn; out: counters after each touch."""
    live = [f(capacity, page_bytes) for capacity, page_bytes, _ in tables]
    found = [[] for _ in tables]
    for turn in range(max(len(touches) for *_, touches in tables)):
        for table, (*_, touches), notes in zip(live, tables, found):
            if turn < len(touches):
                notes.append(touched(table, *touches[turn]))
    return found


def touched(table, key, size, write):
    if key is None:
        table.evict_to(size)
    else:
        table.touch(key, size, write)
    return [table.faults, table.bytes_in, table.bytes_out, len(table.resident)]
