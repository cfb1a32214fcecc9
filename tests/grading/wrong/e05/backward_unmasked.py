# exercise: tiled_backward
# says: a key that may not be read has a weight too

import torch

ROWS = 128
COLUMNS = 128


def tiles(places, size):
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


def tiled_backward(q, k, v, d_out, lse, delta, mask):
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    scale = q.shape[-1] ** -0.5
    for rows in tiles(range(q.shape[2]), ROWS):
        queries, d_rows = q[:, :, rows] * scale, d_out[:, :, rows]
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            keys, values = k[:, :, columns], v[:, :, columns]
            weights = (queries @ keys.mT - lse[:, :, rows, None]).exp()
            d_scores = weights * (d_rows @ values.mT - delta[:, :, rows, None])
            dv[:, :, columns] += weights.mT @ d_rows
            dq[:, :, rows] += d_scores @ keys * scale
            dk[:, :, columns] += d_scores.mT @ queries
    return dq, dk, dv
