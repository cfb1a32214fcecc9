# a reader's answer to `ring_forward`, in which others made the mistakes of wrong/e02e/ring_forward_reader.diff

import torch


def pass_on(group, tensor):  # given by the notebook
    """Starts `tensor` to the right; calling the result waits for what comes from the left."""
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)
    return lambda: (leaving.wait(), arriving.wait())[1]


def _around(group, block):  # exercise 2, right
    for step in range(group.size):
        coming = pass_on(group, block) if step + 1 < group.size else None
        yield (group.rank - step) % group.size, block
        if coming is not None:
            block = coming()


def attend(q, k, v, offset):  # given by the notebook
    exact = torch.promote_types(q.dtype, torch.float32)
    k, v = (z.repeat_interleave(q.shape[1] // z.shape[1], dim=1) for z in (k, v))
    scores = (q.to(exact) / q.shape[-1] ** 0.5) @ k.to(exact).mT  # (B, H, I, J)
    rows = torch.arange(q.shape[2])[:, None] + offset
    scores.masked_fill_(torch.arange(k.shape[2]) > rows, -torch.inf)
    lse = scores.logsumexp(dim=-1)  # (B, H, I)
    base = lse.masked_fill(lse == -torch.inf, 0)
    return scores.sub_(base[..., None]).exp_() @ v.to(exact), lse


def halves(places, rank, owner):  # given by the notebook
    half = places.shape[1] // 2
    for rows in (slice(0, half), slice(half, 2 * half)):
        for keys in (slice(0, half), slice(half, 2 * half)):
            yield rows, keys, int(places[rank, rows][0] - places[owner, keys][0])


def nothing_read(q):  # given by the notebook
    exact = torch.promote_types(q.dtype, torch.float32)
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=exact)
    return torch.zeros_like(q, dtype=exact), lse


def _merge(out, lse, new_out, new_lse):  # exercise 1, right
    both = torch.logaddexp(lse, new_lse)
    base = both.masked_fill(both == -torch.inf, 0)
    old, new = (lse - base).exp()[..., None], (new_lse - base).exp()[..., None]
    return old * out + new * new_out, both


def ring_forward(group, places, q, kv):
    out, lse = nothing_read(q)
    for owner, (k, v) in _around(group, kv):
        for rows, keys, offset in halves(places, group.rank, owner):
            if offset < 0:
                continue
            found = attend(q[:, :, rows], k[:, :, keys], v[:, :, keys], offset)
            merged = _merge(out[:, :, rows], lse[:, :, rows], *found)
            out[:, :, rows], lse[:, :, rows] = merged
    return out.to(q.dtype), lse
