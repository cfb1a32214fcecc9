"""The probes of lab e02e: what runs in the sandbox, beside a submission on context parallelism.

Nothing here knows what is expected: the verdicts, in test_e02e_context_parallel.py, are made from
what comes back.
"""

from __future__ import annotations

from itertools import islice

import torch

from minitrain.measure.flops import counted_flops


def calls(f, cases):
    return [f(*case) for case in cases]


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


def issued(group, kind, nbytes=None):
    return [op for op in group.trace.ops if op.kind == kind and nbytes in (None, op.payload_bytes)]


def walk(group, f, blocks):
    """What a generator yields, and what was under way each time."""
    mine, seen = blocks[group.rank].clone(), []
    for owner, block in islice(f(group, mine), group.size + 1):
        arriving = issued(group, "recv")
        waited = sum(op.waited is not None for op in arriving)
        seen.append((owner, block.clone(), len(issued(group, "send")), waited))
    return {"seen": seen, "ops": sent_by(group)}


def sent_by(group):
    return [(op.kind, op.payload_bytes) for op in group.trace.ops]


def ring(group, f, places, q, k, v):
    """ring_forward on this rank's tokens, with FLOPs and messages."""
    mine, got = places[group.rank], {}
    kv = torch.stack((k[:, :, mine], v[:, :, mine]))

    def call():
        got["out"], got["lse"] = f(group, places, q[:, :, mine], kv)

    flops = counted_flops(call)
    return {**got, "flops": flops, "ops": sent_by(group)}


def back(group, f, kv, parts, dq):
    """ring_backward with gradients known beforehand: parts[rank, owner] is the rank's part."""
    log = []

    def gradients(owner, block):
        large = parts[0, 0].nbytes
        waited = sum(op.waited is not None for op in issued(group, "recv", large))
        log.append(
            (owner, torch.equal(block, kv[owner]), len(issued(group, "send", large)), waited)
        )
        return dq[group.rank, owner].clone(), parts[group.rank, owner].clone()

    got = f(group, kv[group.rank].clone(), gradients)
    return {"dq": got[0], "dkv": got[1], "log": log, "ops": sent_by(group)}


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


def heads_for_tokens(group, f, q, k, v, d_out):
    leaves = [z.chunk(group.size, 2)[group.rank].clone().requires_grad_() for z in (q, k, v)]
    out = f(*leaves, group.size, lambda pieces: Exchange.apply(pieces, group))
    forward = group.trace.bytes_sent()
    value, kinds = out.detach().clone(), sorted({op.kind for op in group.trace.ops})
    if out.requires_grad and out.shape == leaves[0].shape:
        out.backward(d_out.chunk(group.size, 2)[group.rank])
    gradients = [leaf.grad for leaf in leaves]
    return {"out": value, "gradients": gradients, "sent": forward, "kinds": kinds}
