# exercise: tiled_backward
# says: it was divided twice
# The tile of queries is divided by the root of C for the scores, and dK = dS^T Q / root C uses
# the divided queries: dK is scaled twice.

import torch
from minitrain.model.attention.mask import Mask

ROWS = 128
COLUMNS = 128


def tiles(places, size):
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


def tiled_backward(q, k, v, d_out, lse, delta, mask: Mask):
    L, C = q.shape[2:]
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for rows in tiles(range(L), ROWS):
        query, d_row = q[:, :, rows] / C**0.5, d_out[:, :, rows]
        for columns in tiles(mask.keys(rows, L), COLUMNS):
            key, value = k[:, :, columns], v[:, :, columns]
            scores = query @ key.mT
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = scores.masked_fill(~readable, -torch.inf)
            p = torch.exp(scores - lse[:, :, rows, None])
            ds = p * (d_row @ value.mT - delta[:, :, rows, None])
            dv[:, :, columns] += p.mT @ d_row
            dq[:, :, rows] += ds @ key / C**0.5
            dk[:, :, columns] += ds.mT @ query / C**0.5
    return dq, dk, dv
