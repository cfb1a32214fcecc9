# exercise: ring_forward
# says: begin with nothing_read(q)
# the running answer is kept in the dtype of q, so it is rounded at each merge (bfloat16)

import torch


def ring_forward(group, places, q, kv) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = torch.zeros_like(q), nothing_read(q)[1]
    for owner, block in around(group, kv):
        k, v = block
        for rows, keys, offset in halves(places, group.rank, owner):
            if offset >= 0:
                new = attend(q[:, :, rows], k[:, :, keys], v[:, :, keys], offset)
                before = out[:, :, rows].to(lse.dtype)
                merged = merge(before, lse[:, :, rows], *new)
                out[:, :, rows], lse[:, :, rows] = merged
    return out, lse
