# exercise: ring_forward
# how it differs: nothing is written into slices: each half of the rows has its own running (out,
# lse), joined by cat at the end.
import torch


def ring_forward(group, places, q, kv) -> tuple[torch.Tensor, torch.Tensor]:
    half = places.shape[1] // 2
    so_far = {first: nothing_read(q[:, :, first : first + half]) for first in (0, half)}
    for owner, block in around(group, kv):
        readable = (pair for pair in halves(places, group.rank, owner) if pair[2] >= 0)
        for rows, keys, offset in readable:
            k, v = block[:, :, :, keys].unbind(0)
            before = so_far[rows.start]
            so_far[rows.start] = merge(*before, *attend(q[:, :, rows], k, v, offset))
    outs, lses = zip(so_far[0], so_far[half])
    return torch.cat(outs, dim=2).to(q.dtype), torch.cat(lses, dim=2)
