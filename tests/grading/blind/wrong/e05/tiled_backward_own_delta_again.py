# exercise: tiled_backward
# says: as if delta was made again
# never reads `delta` but sums P * dP over the keys that are here, the same only if all keys are
# here; the text: "Use `lse` and `delta` as they come: ... they count keys that other ranks
# hold".

import torch
from minitrain.model.attention.mask import Mask

ROWS = 128
COLUMNS = 128


def tiles(places, size):
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


def tiled_backward(q, k, v, d_out, lse, delta, mask: Mask) -> tuple[torch.Tensor, ...]:
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    scale = q.shape[-1] ** 0.5
    for rows in tiles(range(q.shape[2]), ROWS):
        queries, d_rows = q[:, :, rows] / scale, d_out[:, :, rows]
        made, row_sum = [], 0
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            scores = queries @ k[:, :, columns].mT
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = scores.masked_fill(~readable, float("-inf"))
            weights = (scores - lse[:, :, rows, None]).exp()
            d_weights = d_rows @ v[:, :, columns].mT
            row_sum = row_sum + (weights * d_weights).sum(-1, keepdim=True)
            made.append((columns, weights, d_weights))
        for columns, weights, d_weights in made:
            d_scores = weights * (d_weights - row_sum)
            dv[:, :, columns] += weights.mT @ d_rows
            dk[:, :, columns] += d_scores.mT @ queries
            dq[:, :, rows] += d_scores @ k[:, :, columns] / scale
    return dq, dk, dv
