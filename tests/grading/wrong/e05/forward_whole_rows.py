# exercise: tiled_forward
# says: Cut the keys too

import torch

ROWS = 128
COLUMNS = 128


def tiles(places, size):
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


def tiled_forward(q, k, v, mask):
    out, lse = torch.empty_like(q), torch.empty_like(q[..., 0])
    for rows in tiles(range(q.shape[2]), ROWS):
        columns = slice(0, rows.stop)
        scores = q[:, :, rows] @ k[:, :, columns].mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~mask.tile(rows, columns, q.device), -torch.inf)
        out[:, :, rows] = scores.softmax(-1) @ v[:, :, columns]
        lse[:, :, rows] = scores.logsumexp(-1)
    return out, lse
