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


class Watch:
    """What a rank has issued from here on."""

    def __init__(self, group):
        self.trace, self.start = group.trace, len(group.trace.ops)

    def told(self):
        """(kind, bytes, peer, bytes on the wire) of each operation."""
        ops = self.trace.ops[self.start :]
        return [(op.kind, op.payload_bytes, op.peer, op.sent_bytes) for op in ops]

    def under_way(self, nbytes=None):
        """How many messages (of this size) have been sent off, and how many waited for."""
        ops = self.trace.ops[self.start :]
        ops = [op for op in ops if nbytes in (None, op.payload_bytes)]
        arrived = [op for op in ops if op.kind == "recv" and op.waited is not None]
        return sum(op.kind == "send" for op in ops), len(arrived)


def walk(group, f, calls):
    """A call's blocks go round side by side: what came at each yield, and what was under way."""
    return in_turn_on_ranks(group, partial(walked, f), calls)


def walked(f, group, *blocks):
    watch, seen = Watch(group), []
    rings = [islice(f(group, block), group.size + 1) for block in blocks]
    for pairs in zip_longest(*rings):
        seen.append((fresh(list(pairs)), *watch.under_way()))
    return {"seen": seen, "ops": watch.told()}


class Steps(TorchDispatchMode):
    """What was under way at each matmul, once each."""

    def __init__(self, watch):
        super().__init__()
        self.watch, self.seen = watch, []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if is_matmul(function.overloadpacket):
            now = self.watch.under_way()
            self.seen += [now] if self.seen[-1:] != [now] else []
        return function(*arguments, **(options or {}))


def is_matmul(packet):
    from torch.utils.flop_counter import flop_registry  # cannot travel with the probe

    return packet in flop_registry or "scaled_dot_product" in str(packet)


def ring(group, f, calls):
    """ring_forward with its FLOPs, its messages, and what was under way as it computed."""
    return in_turn_on_ranks(group, partial(rung, f), calls)


def rung(f, group, places, q, kv):
    watch, got = Watch(group), []
    with Steps(Watch(group)) as steps:
        flops = counted_flops(lambda: got.append(f(group, places, q, kv)))
    return {"got": got[0], "flops": flops, "steps": steps.seen, "ops": watch.told()}


def back(group, f, calls):
    """ring_backward, where a part is a block times this rank's own factor."""
    return in_turn_on_ranks(group, partial(backed, f), calls)


def backed(f, group, kv, factor):
    watch, log = Watch(group), []

    def gradients(owner, block):
        part = factor * block
        ways = [watch.under_way(nbytes) for nbytes in (block.nbytes, part.nbytes)]
        log.append((owner, block.clone(), *ways))
        return part.sum(0), part

    got = f(group, kv, gradients)
    return {"got": got, "log": log, "ops": watch.told()}


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
    """ulysses: all forward, then all backward, call by call; ops are those of forward."""
    live = []

    def forward(q, k, v):
        watch = Watch(group)
        out = f(q, k, v, group.size, lambda pieces: Exchange.apply(pieces, group))
        live.append(((q, k, v), watch.told()))
        return out

    mine = calls[group.rank]
    found = in_turn(forward, [[z.requires_grad_() for z in given] for *given, _ in mine])
    for (*_, d_out), (leaves, ops), call in zip(mine, live, found):
        out = call["later"]
        call["later"] = out.detach().clone() if isinstance(out, torch.Tensor) else out
        if isinstance(out, torch.Tensor) and out.requires_grad and out.shape == d_out.shape:
            out.backward(d_out)
        call |= {"gradients": [leaf.grad for leaf in leaves], "ops": ops}
    return found
