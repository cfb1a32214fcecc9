"""The probes of lab e02e: what runs in the sandbox, beside a submission on context parallelism.

Nothing here knows what is expected: the verdicts, in test_e02e_context_parallel.py, are made from
what comes back. Calls are made in turn in one process, of other shapes and dtypes each.
"""

from __future__ import annotations

from functools import partial
from itertools import islice, zip_longest

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.measure.flops import counted_flops

from .alive import Alive
from .in_turn import fresh, in_turn, in_turn_on_ranks


def refusals(f, cases):
    """The name of what it raised, or "nothing"."""
    found = []
    for case in cases:
        try:
            f(*case)
            found.append("nothing")
        except ValueError:
            found.append("ValueError")
        except Exception as error:
            found.append(type(error).__name__)
    return found


class Sent(Exception):
    """Something was to be sent."""


def refused_heads(f, cases):
    """As `refusals`, of ulysses; "Sent" where it called `exchange`."""

    def exchange(pieces):
        raise Sent

    return refusals(f, [(*case, exchange) for case in cases])


def walk(group, f, calls):
    """A call's blocks go round side by side: what came at each yield, which is marked."""
    return in_turn_on_ranks(group, partial(walked, f), calls)


def walked(f, group, *blocks):
    seen = []
    group.trace.mark("call")
    rings = [islice(f(group, block), group.size + 1) for block in blocks]
    for pairs in zip_longest(*rings):
        group.trace.mark(("yield",))
        seen.append(fresh(list(pairs)))
    group.trace.mark(("over", "call"))
    return {"seen": seen}


class Steps(TorchDispatchMode):
    """Marks each matmul, and before it the bytes of what the call has made and holds."""

    def __init__(self, trace, alive):
        super().__init__()
        self.trace, self.alive = trace, alive

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if is_matmul(function.overloadpacket):
            self.trace.mark(("held", self.alive.nbytes()))
            self.trace.mark(("matmul",))
        return function(*arguments, **(options or {}))


def is_matmul(packet):
    from torch.utils.flop_counter import flop_registry  # cannot travel with the probe

    return packet in flop_registry or "scaled_dot_product" in str(packet)


def ring(group, f, calls):
    """ring_forward with its FLOPs; marks where it computed."""
    return in_turn_on_ranks(group, partial(rung, f), calls)


def rung(f, group, places, q, kv):
    got, alive = [], Alive()
    group.trace.mark("call")
    with alive, Steps(group.trace, alive):
        flops = counted_flops(lambda: got.append(f(group, places, q, kv)))
    group.trace.mark(("over", "call"))
    return {"got": got[0], "flops": flops}


def back(group, f, calls):
    """ring_backward, where a part is a block times this rank's own factor."""
    return in_turn_on_ranks(group, partial(backed, f), calls)


def backed(f, group, kv, factor):
    log = []

    def gradients(owner, block):
        part = factor * block
        group.trace.mark(("asked", block.nbytes, part.nbytes))
        log.append((owner, block.clone()))
        return part.sum(0), part

    group.trace.mark("call")
    got = f(group, kv, gradients)
    group.trace.mark(("over", "call"))
    return {"got": got, "log": log}


class Exchange(torch.autograd.Function):
    """The grader's own all-to-all."""

    @staticmethod
    def forward(ctx, pieces, group):
        ctx.group = group
        return group.all_to_all(torch.empty_like(pieces.contiguous()), pieces.contiguous())

    @staticmethod
    def backward(ctx, d_pieces):
        d_pieces = d_pieces.contiguous()
        return ctx.group.all_to_all(torch.empty_like(d_pieces), d_pieces), None


def heads_for_tokens(group, f, calls):
    """ulysses: all forward, then all backward, call by call; forward is marked."""
    live = []

    def forward(q, k, v):
        group.trace.mark("call")
        out = f(q, k, v, group.size, lambda pieces: Exchange.apply(pieces, group))
        group.trace.mark(("over", "call"))
        live.append((q, k, v))
        return out

    mine = calls[group.rank]
    found = in_turn(forward, [[z.requires_grad_() for z in given] for *given, _ in mine])
    for (*_, d_out), leaves, call in zip(mine, live, found):
        out = call["later"]
        call["later"] = out.detach().clone() if isinstance(out, torch.Tensor) else out
        if isinstance(out, torch.Tensor) and out.requires_grad and out.shape == d_out.shape:
            group.trace.mark("backward")
            out.backward(d_out)
            group.trace.mark(("over", "backward"))
        call["gradients"] = [leaf.grad for leaf in leaves]
    return found
