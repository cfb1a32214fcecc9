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
        return does(x)

    return apply


def folded(x):
    """In place, and half as long."""
    first, second = x.mul_(3).chunk(2)
    return first + second


PAIRS = {
    "turn": (lambda x: x.mul_(2), lambda x: x.neg_()),
    "fold": (folded, lambda x: torch.cat([x.neg_(), x])),
}


def pairs(group, f, calls):
    """Operators of two pairs, both made before any is used, and all forwards before a backward.

    A call of calls[rank]: the pair's name, 0 or 1 for its first or second operator, x and dy.
    """
    made = {name: f(noted(there, "there", group), noted(back, "back", group))
            for name, (there, back) in PAIRS.items()}  # fmt: skip
    if any(isinstance(operator, type) for operators in made.values() for operator in operators):
        raise TypeError("conjugates returned a class: return First.apply and Second.apply")
    live = []
    for name, which, x, dy in calls[group.rank]:
        x, dy, plain = fresh(x).requires_grad_(), fresh(dy), fresh(x)
        group.trace.mark("forward")
        y = made[name][which](x)
        group.trace.mark(("over", "forward"))
        live.append({"x": x, "dy": dy, "plain": plain, "y": y, "out": fresh(y)})
    for (name, which, *_), call in zip(calls[group.rank], live):
        backward(group, call["y"], call["dy"])
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


def steps(group, f, ways, calls):
    """f(first, second, *ways), call after call of calls[rank]; ways: the operators it is given."""
    return in_turn(partial(step, group, f, ways), calls[group.rank])


def step(group, f, ways, first, second, dy):
    """Forward and backward, twice on the same leaves; what of it autograd keeps, and how large the
    largest tensor is. A dict becomes a namespace."""
    tp, kept = operators(group), set()
    given = [getattr(tp, way) for way in ways] or [tp]
    w = SimpleNamespace(**second) if isinstance(second, dict) else second

    def pack(tensor):
        if tensor.numel() == first.numel() * group.size:
            kept.add(tensor.untyped_storage().data_ptr())
        return tensor

    with Largest() as seen, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        group.trace.mark("forward")
        y = f(first, w, *given)
        group.trace.mark(("over", "forward"))
        backward(group, y, dy)
    found = {"y": y.detach().clone(), "first": gradients(first, second)}
    group.trace.mark("again")
    y = f(first, w, *given)
    if y.requires_grad and y.shape == dy.shape:
        y.backward(dy)
    group.trace.mark(("over", "again"))
    found |= {"second": gradients(first, second), "kept": len(kept), "largest": seen.elements}
    found["as given"] = not isinstance(second, dict) or (
        vars(w).keys() == second.keys() and all(vars(w)[name] is second[name] for name in second)
    )
    return found


def gradients(*given):
    """Of the leaves, which then have none."""
    leaves = [leaf for leaf in tree_leaves(given) if getattr(leaf, "requires_grad", False)]
    found = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return found
