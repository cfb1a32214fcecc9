"""The probes of lab e02b: what runs in the sandbox, beside a submission on tensor parallelism.

Nothing here knows what is expected: the verdicts, in test_e02b_tensor_parallel.py, are made from
what comes back.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROWS, COLUMNS = ("q", "k", "v", "gate", "up"), ("o", "down")

BATCH, WIDTH, FEATURES, HEAD_SIZE = 3, 12, 18, 2  # 2 and 3 ranks divide what must be divided


class Sum(torch.autograd.Function):
    """The grader's own operators: all-reduce in forward, in backward, or in neither."""

    @staticmethod
    def forward(ctx, x, group, there, back):
        ctx.group, ctx.back = group, back
        return there(x.detach().clone(), group)

    @staticmethod
    def backward(ctx, dy):
        return ctx.back(dy.clone(), ctx.group), None, None, None


def same(x, group):
    return x


def summed(x, group):
    return group.all_reduce(x.contiguous())


def gathered(x, group):
    whole = x.new_empty(group.size, *x.shape)
    group.all_gather(whole, x.contiguous())
    return whole.movedim(0, 1).flatten(1, 2)  # (B, T/N, D) -> (B, T, D)


def sum_sliced(x, group):
    slices = x.unflatten(1, (group.size, -1)).movedim(1, 0).contiguous()
    return group.reduce_scatter(torch.empty_like(slices[0]), slices)


def operators(group):
    """What the exercises get as `tp`, of the grader's own make."""

    def operator(there, back):
        return lambda x: Sum.apply(x, group, there, back)

    return SimpleNamespace(
        group=group,
        rank=group.rank,
        size=group.size,
        copy=operator(same, summed),
        reduce=operator(summed, same),
        all_gather=operator(gathered, sum_sliced),
        reduce_scatter=operator(sum_sliced, gathered),
        max=lambda x: group.all_reduce(x.detach().clone(), op="max"),
    )


def applied(f, group):
    """The two operators that conjugates makes of (same, all-reduce)."""
    operators = f(lambda z: z, group.all_reduce)
    if any(isinstance(operator, type) for operator in operators):
        raise TypeError("conjugates returned a class: return First.apply and Second.apply")
    return operators


def pairs(group, f, x, dy):
    """Both operators of (same, all-reduce): values, gradients, messages, what was overwritten."""
    first, second = applied(f, group)
    out = {}
    for name, operator in (("first", first), ("second", second)):
        mine = x[group.rank].clone().requires_grad_()
        before = group.trace.count("all_reduce")
        y = operator(mine * 1.0)
        forward = group.trace.count("all_reduce") - before
        value = y.detach().clone()
        if y.requires_grad:
            y.backward(dy[group.rank].clone())
        backward = group.trace.count("all_reduce") - before - forward
        out[name] = {"y": value, "dx": mine.grad, "forward": forward, "backward": backward}
    return out


def unchanged(group, f, x):
    """Whether what went in, and the gradient that came back, are still what they were."""
    first, second = applied(f, group)
    out = []
    for operator in (first, second):
        mine, dy = x[group.rank].clone(), x[group.rank] + 1
        leaf = mine.requires_grad_()
        y = operator(leaf)
        intact = torch.equal(leaf.detach(), x[group.rank])
        if y.requires_grad:
            y.backward(dy)
        out.append((intact, torch.equal(dy, x[group.rank] + 1)))
    return out


def cut(whole, rank, size):
    """This rank's slices of a layer, as leaves: rows of what makes features, columns of what reads
    them."""
    w = SimpleNamespace(head_size=HEAD_SIZE)
    for name, matrix in whole.items():
        dim = 0 if name in ROWS else 1 if name in COLUMNS else None
        part = matrix if dim is None else matrix.chunk(size, dim)[rank]
        setattr(w, name, part.clone().requires_grad_())
    return w


def block(group, f, whole, x, dy):
    """parallel_mlp or parallel_attention, with copy and reduce, and what was sent when."""
    tp, w = operators(group), cut(whole, group.rank, group.size)
    x = x.clone().requires_grad_()
    y = f(x, w, tp.copy, tp.reduce)
    forward = [(op.kind, op.payload_bytes) for op in group.trace.ops]
    value = y.detach().clone()
    y.backward(dy)
    backward = [(op.kind, op.payload_bytes) for op in group.trace.ops[len(forward) :]]
    gradients = {"x": x.grad, **{name: getattr(w, name).grad for name in whole}}
    return {"y": value, "gradients": gradients, "forward": forward, "backward": backward}


def split_block(group, f, whole, x, dy):
    """sequence_mlp on this rank's tokens; also how many tensors of all tokens autograd keeps."""
    tp, w = operators(group), cut(whole, group.rank, group.size)
    mine = x.chunk(group.size, 1)[group.rank].clone().requires_grad_()
    kept = {}

    def pack(tensor):
        if tensor.numel() == x.numel():
            kept[tensor.untyped_storage().data_ptr()] = True
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = f(mine, w, tp)
    forward = [(op.kind, op.payload_bytes) for op in group.trace.ops]
    value = y.detach().clone()
    if y.shape == mine.shape:
        y.backward(dy.chunk(group.size, 1)[group.rank])
    backward = [(op.kind, op.payload_bytes) for op in group.trace.ops[len(forward) :]]
    gradients = {"x": mine.grad, **{name: getattr(w, name).grad for name in whole}}
    return {"y": value, "gradients": gradients, "forward": forward, "backward": backward,
            "whole_kept": len(kept)}  # fmt: skip


def look_up(group, f, tokens, whole, dy):
    """embed, forward and backward, with the messages."""
    weight = whole.chunk(group.size)[group.rank].clone().requires_grad_()
    y = f(tokens, weight, operators(group))
    forward = [(op.kind, op.payload_bytes) for op in group.trace.ops]
    value = y.detach().clone()
    y.backward(dy)
    backward = len(group.trace.ops) - len(forward)
    return {"y": value, "dw": weight.grad, "forward": forward, "backward": backward}


class Largest(TorchDispatchMode):
    """The most elements that any tensor made in here has."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        made = [tensor.numel() for tensor in tree_leaves(out) if isinstance(tensor, torch.Tensor)]
        self.elements = max([self.elements, *made])
        return out


def loss_of(group, f, whole, targets):
    """vocabulary_loss, its gradient, bytes, and the largest tensor that it made."""
    logits = whole.chunk(group.size, -1)[group.rank].clone().requires_grad_()
    with Largest() as seen:
        loss = f(logits, targets, operators(group))
        forward = sum(op.payload_bytes for op in group.trace.ops)
        value = loss.detach().clone()
        if loss.dim() == 0 and loss.requires_grad:
            loss.backward()
    return {"loss": value, "dlogits": logits.grad, "payload": forward, "largest": seen.elements}
