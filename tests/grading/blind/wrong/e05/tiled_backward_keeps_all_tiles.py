# exercise: tiled_backward
# says: each is gone when the next one comes
# a first pass makes the weights of all tiles and keeps them in a dict for a second one, so
# together they are the L x L matrix again: the text wants "the attention that never holds an L
# x L tensor: its memory falls from L² to L".

import torch

from minitrain.model.attention.mask import Mask

ROWS = 128  # of a tile
COLUMNS = 128


def tiles(places, size):
    """range(0, 300), 128 -> slices 0:128, 128:256, 256:300"""
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


def tiled_backward(q, k, v, d_out, lse, delta, mask: Mask) -> tuple[torch.Tensor, ...]:
    length, scale = q.shape[2], q.shape[3] ** -0.5
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    made = {}
    for rows in tiles(slice(0, length), ROWS):
        for columns in tiles(mask.keys(rows, length), COLUMNS):
            scores = (q[:, :, rows] * scale) @ k[:, :, columns].mT
            weights = (scores - lse[:, :, rows, None]).exp()
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                weights = weights.masked_fill(~readable, 0)
            made[rows.start, columns.start] = weights
            dv[:, :, columns] += weights.mT @ d_out[:, :, rows]
    for rows in tiles(slice(0, length), ROWS):
        for columns in tiles(mask.keys(rows, length), COLUMNS):
            weights = made[rows.start, columns.start]
            d_weights = d_out[:, :, rows] @ v[:, :, columns].mT
            d_scores = weights * (d_weights - delta[:, :, rows, None])
            dq[:, :, rows] += d_scores @ k[:, :, columns] * scale
            dk[:, :, columns] += d_scores.mT @ q[:, :, rows] * scale
    return dq, dk, dv
