import torch


def ring_forward(group, places, q, kv):
    """Without the helpers: running maximum, mass and total, divided once at the end."""
    exact = torch.promote_types(q.dtype, torch.float32)
    group_size, mine = q.shape[1] // kv.shape[2], places[group.rank]
    half = len(mine) // 2
    top = torch.full(q.shape[:3], -1e30, dtype=exact)
    mass, total = torch.zeros(q.shape[:3], dtype=exact), torch.zeros_like(q, dtype=exact)
    for owner, block in around(group, kv):
        k, v = (z.to(exact).repeat_interleave(group_size, dim=1) for z in block)
        theirs = places[owner]
        for a in (slice(half), slice(half, None)):
            for b in (slice(half), slice(half, None)):
                if mine[a][-1] < theirs[b][0]:
                    continue
                later = theirs[b] > mine[a][:, None]
                scores = (q[:, :, a].to(exact) @ k[:, :, b].mT) * q.shape[-1] ** -0.5
                scores = scores.masked_fill(later, -torch.inf)
                higher = torch.maximum(top[:, :, a], scores.amax(-1))
                shrink, weights = (top[:, :, a] - higher).exp(), (scores - higher[..., None]).exp()
                mass[:, :, a] = mass[:, :, a] * shrink + weights.sum(-1)
                total[:, :, a] = total[:, :, a] * shrink[..., None] + weights @ v[:, :, b]
                top[:, :, a] = higher
    return (total / mass[..., None]).to(q.dtype), top + mass.log()
