# exercise: ring_forward
# says: the blocks on the diagonal are missing

import torch


def attend(q, k, v, offset):
    exact = torch.promote_types(q.dtype, torch.float32)
    k, v = (z.repeat_interleave(q.shape[1] // z.shape[1], dim=1) for z in (k, v))
    scores = (q.to(exact) / q.shape[-1] ** 0.5) @ k.to(exact).mT
    rows = torch.arange(q.shape[2])[:, None] + offset
    scores.masked_fill_(torch.arange(k.shape[2]) > rows, -torch.inf)
    lse = scores.logsumexp(dim=-1)
    base = lse.masked_fill(lse == -torch.inf, 0)
    return scores.sub_(base[..., None]).exp_() @ v.to(exact), lse


def halves(places, rank, owner):
    half = places.shape[1] // 2
    for rows in (slice(0, half), slice(half, 2 * half)):
        for keys in (slice(0, half), slice(half, 2 * half)):
            yield rows, keys, int(places[rank, rows][0] - places[owner, keys][0])


def nothing_read(q):
    exact = torch.promote_types(q.dtype, torch.float32)
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=exact)
    return torch.zeros_like(q, dtype=exact), lse


def ring_forward(group, places, q, kv):
    out, lse = nothing_read(q)
    for owner, (k, v) in around(group, kv):
        for rows, keys, offset in halves(places, group.rank, owner):
            if offset > 0:
                found = attend(q[:, :, rows], k[:, :, keys], v[:, :, keys], offset)
                merged = merge(out[:, :, rows], lse[:, :, rows], *found)
                out[:, :, rows], lse[:, :, rows] = merged
    return out.to(q.dtype), lse
