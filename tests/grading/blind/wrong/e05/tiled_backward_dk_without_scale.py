# exercise: tiled_backward
# says: the scores were divided by √C, so is this gradient
# dk is not divided by the square root of C

import torch

from minitrain.model.attention.mask import Mask

ROWS = 128
COLUMNS = 128


def tiled_backward(q, k, v, d_out, lse, delta, mask: Mask):
    root = q.shape[-1] ** 0.5
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for rows in tiles(range(q.shape[2]), ROWS):
        queries = q[:, :, rows]
        d_rows = d_out[:, :, rows]
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            keys, values = k[:, :, columns], v[:, :, columns]
            scores = queries @ keys.mT / root
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = scores.masked_fill(~readable, float("-inf"))
            weights = (scores - lse[:, :, rows, None]).exp()
            d_scores = weights * (d_rows @ values.mT - delta[:, :, rows, None])
            dv[:, :, columns] += weights.mT @ d_rows
            dq[:, :, rows] += d_scores @ keys / root
            dk[:, :, columns] += d_scores.mT @ queries
    return dq, dk, dv
