# exercise: tiled_backward
# says: that is a softmax of each tile
# Each tile's weights are a softmax of that tile alone: right for a single one, and "weights are
# exp(scores - lse)", lse being the whole row's.
import torch

from minitrain.model.attention.mask import Mask

ROWS = 128
COLUMNS = 128


def tiled_backward(q, k, v, d_out, lse, delta, mask: Mask):
    scale = q.shape[-1] ** -0.5
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for rows in tiles(range(q.shape[2]), ROWS):
        queries, d_rows = q[:, :, rows] * scale, d_out[:, :, rows]
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            keys, values = k[:, :, columns], v[:, :, columns]
            scores = queries @ keys.mT
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = scores.masked_fill(~readable, -torch.inf)
            weights = scores.softmax(-1).nan_to_num(0)
            d_scores = weights * (d_rows @ values.mT - delta[:, :, rows, None])
            dv[:, :, columns] += weights.mT @ d_rows
            dq[:, :, rows] += d_scores @ keys * scale
            dk[:, :, columns] += d_scores.mT @ queries
    return dq, dk, dv
