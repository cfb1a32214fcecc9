# exercise: ring_forward
# says: compute with each block inside the loop over `around`
# all blocks are collected in a list before any is computed: nothing travels during the
# computing, and all keys are held at once

import torch


def ring_forward(group, places, q, kv) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = nothing_read(q)
    for owner, block in list(around(group, kv)):
        k, v = block
        for rows, keys, offset in halves(places, group.rank, owner):
            if offset >= 0:
                new = attend(q[:, :, rows], k[:, :, keys], v[:, :, keys], offset)
                merged = merge(out[:, :, rows], lse[:, :, rows], *new)
                out[:, :, rows], lse[:, :, rows] = merged
    return out.to(q.dtype), lse
