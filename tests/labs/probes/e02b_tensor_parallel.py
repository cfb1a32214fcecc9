"""The probes of lab e02b: what runs in the sandbox, beside a submission on tensor parallelism.

Nothing here knows what is expected: the verdicts, in test_e02b_tensor_parallel.py, are made from
what comes back.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .in_turn import fresh, in_turn


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


def noted(does, name, group):
    """A function of one tensor that also tells the relay when it is called."""

    def apply(x):
        group.trace.mark(name)
        return does(x, group)

    return apply


def folded(x, group):
    """In place, and half as long: no message."""
    first, second = x.mul_(3).chunk(2)
    return first + second


def unfolded(x, group):
    return torch.cat([x.neg_(), x])


def doubled(x, group):
    return x.mul_(2)


def turned(x, group):
    return x.neg_()


PAIRS = {
    "sum": (same, summed),
    "turn": (doubled, turned),
    "gather": (gathered, sum_sliced),
    "fold": (folded, unfolded),
}


def pairs(group, f, calls):
    """Operators of some pairs, all made before any is used, and all forwards before a backward.

    A call: the pair's name, 0 or 1 for its first or second operator, and each rank's x and dy.
    """
    made, live = {}, []
    for name in dict.fromkeys(call[0] for call in calls):
        there, back = PAIRS[name]
        made[name] = f(noted(there, "there", group), noted(back, "back", group))
        if any(isinstance(operator, type) for operator in made[name]):
            raise TypeError("conjugates returned a class: return First.apply and Second.apply")
    for name, which, xs, dys in calls:
        x, dy = fresh(xs[group.rank]).requires_grad_(), fresh(dys[group.rank])
        group.trace.mark("forward")
        y = made[name][which](x)
        group.trace.mark(("over", "forward"))
        live.append({"x": x, "dy": dy, "y": y, "out": fresh(y)})
    for call in live:
        backward(group, call["y"], call["dy"])
    for (name, which, xs, _), call in zip(calls, live):
        call["plain"] = fresh(xs[group.rank])  # as in inference
        group.trace.mark("inference")
        made[name][which](call["plain"])
        group.trace.mark(("over", "inference"))
    return [
        {**call, "x": fresh(call["x"]).detach(), "dx": call["x"].grad, "y": call["y"].detach()}
        for call in live
    ]


def backward(group, y, dy):
    group.trace.mark("backward")
    if y.requires_grad and y.shape == dy.shape:
        y.backward(dy)
    group.trace.mark(("over", "backward"))


def blocks(group, f, calls):
    """parallel_mlp or parallel_attention, call after call, on calls[rank]."""
    return in_turn(partial(block, group, f), calls[group.rank])


def block(group, f, x, w, dy, head_size, is_split):
    """On whole tokens with copy and reduce, or on this rank's."""
    tp = operators(group)
    ways = (tp.all_gather, tp.reduce_scatter) if is_split else (tp.copy, tp.reduce)
    weights = SimpleNamespace(head_size=head_size, **w)
    group.trace.mark("forward")
    y = f(x, weights, *ways)
    group.trace.mark(("over", "forward"))
    backward(group, y, dy)
    is_as_given = as_given(weights, head_size=head_size, **w)
    return {"as given": is_as_given, "y": y.detach(), "gradients": gradients(x, w)}


def as_given(weights, **before):
    """Whether it holds the same tensors under the same names, and no others."""
    now = vars(weights)
    return now.keys() == before.keys() and all(now[name] is before[name] for name in before)


def gradients(x, w):
    return {"x": x.grad, **{name: matrix.grad for name, matrix in w.items()}}


def split_blocks(group, f, calls):
    """sequence_mlp, call after call, on calls[rank]."""
    return in_turn(partial(split_block, group, f), calls[group.rank])


def split_steps(group, f, calls):
    """The same, and then a second step on the matrices of the first."""
    live = []

    def step(x, w, dy):
        live.append((fresh(x), w, dy))
        return split_block(group, f, x, w, dy)

    found = in_turn(step, calls[group.rank])
    x, w, dy = live[0]
    for matrix in w.values():
        matrix.grad = None
    group.trace.mark("inference")
    y = f(x, SimpleNamespace(**w), operators(group))
    if y.requires_grad and y.shape == dy.shape:
        y.backward(dy)
    group.trace.mark(("over", "inference"))
    found[0]["second"] = gradients(x, w)
    return found


def split_block(group, f, x, w, dy):
    """On this rank's tokens; also how many tensors of all tokens autograd keeps."""
    tp, kept = operators(group), set()

    def pack(tensor):
        if tensor.numel() == x.numel() * group.size:
            kept.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        weights = SimpleNamespace(**w)
        group.trace.mark("forward")
        y = f(x, weights, tp)
        group.trace.mark(("over", "forward"))
    backward(group, y, dy)
    return {"as given": as_given(weights, **w), "y": y.detach(), "gradients": gradients(x, w),
            "whole_kept": len(kept)}  # fmt: skip


def look_ups(group, f, calls):
    """embed, call after call, on calls[rank]."""
    return in_turn(partial(look_up, group, f), calls[group.rank])


def look_up(group, f, tokens, weight, dy):
    group.trace.mark("forward")
    y = f(tokens, weight, operators(group))
    group.trace.mark(("over", "forward"))
    backward(group, y, dy)
    return {"y": y.detach(), "dw": weight.grad}


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


def losses(group, f, calls):
    """vocabulary_loss, call after call, on calls[rank]."""
    return in_turn(partial(loss_of, group, f), calls[group.rank])


def loss_of(group, f, logits, targets):
    """Its gradient, and the largest tensor that it made."""
    with Largest() as seen:
        group.trace.mark("forward")
        loss = f(logits, targets, operators(group))
        group.trace.mark(("over", "forward"))
        backward(group, loss, torch.ones((), dtype=loss.dtype))
    return {"loss": loss.detach(), "dlogits": logits.grad, "largest": seen.elements}
