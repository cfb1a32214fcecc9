# exercise: tiled_backward
# says: it was divided twice
# dk is divided by √C twice: the queries are already divided, and then "`dk` needs no further
# scale, `dq` does" (hint 3; the formula is dK += dSᵀ Q / √C).

import torch

from minitrain.model.attention.mask import Mask

ROWS = 128  # of a tile
COLUMNS = 128


def tiles(places, size):
    """range(0, 300), 128 -> slices 0:128, 128:256, 256:300"""
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


def tiled_backward(q, k, v, d_out, lse, delta, mask: Mask) -> tuple[torch.Tensor, ...]:
    length, root = q.shape[2], q.shape[3] ** 0.5
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for rows in tiles(slice(0, length), ROWS):
        queries, d_rows = q[:, :, rows] / root, d_out[:, :, rows]
        for columns in tiles(mask.keys(rows, length), COLUMNS):
            keys, values = k[:, :, columns], v[:, :, columns]
            weights = (queries @ keys.mT - lse[:, :, rows, None]).exp()
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                weights = weights.masked_fill(~readable, 0)
            d_scores = weights * (d_rows @ values.mT - delta[:, :, rows, None])
            dv[:, :, columns] += weights.mT @ d_rows
            dq[:, :, rows] += d_scores @ keys / root
            dk[:, :, columns] += d_scores.mT @ queries / root
    return dq, dk, dv
