# exercise: tiled_backward
# says: as if delta was made again
# delta is computed again from the keys that are here, and the given one is ignored: "Use `lse`
# and `delta` as they come: in e02e · Context parallel they count keys that other ranks hold".

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

    def weights_of(rows, columns):
        scores = (q[:, :, rows] * scale) @ k[:, :, columns].mT
        weights = (scores - lse[:, :, rows, None]).exp()
        readable = mask.tile(rows, columns, q.device)
        return weights if readable is None else weights.masked_fill(~readable, 0)

    for rows in tiles(slice(0, length), ROWS):
        keys, d_rows = mask.keys(rows, length), d_out[:, :, rows]
        own = 0  # the row's sum of dP * P
        for columns in tiles(keys, COLUMNS):
            d_weights = d_rows @ v[:, :, columns].mT
            own = own + (weights_of(rows, columns) * d_weights).sum(-1, keepdim=True)
        for columns in tiles(keys, COLUMNS):
            weights = weights_of(rows, columns)
            dv[:, :, columns] += weights.mT @ d_rows
            d_scores = weights * (d_rows @ v[:, :, columns].mT - own)
            dq[:, :, rows] += d_scores @ k[:, :, columns] * scale
            dk[:, :, columns] += d_scores.mT @ q[:, :, rows] * scale
    return dq, dk, dv
