# exercise: tiled_forward
# says: float32 is at work
# lse is made in the default dtype, so it is float32 for float64 or bfloat16 queries; the
# docstring: out and the log-sum-exp "in q's dtype".

import torch
from minitrain.model.attention.mask import Mask

ROWS = 128
COLUMNS = 128


def tiles(places, size):
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


def tiled_forward(q, k, v, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], device=q.device)
    for rows in tiles(range(q.shape[2]), ROWS):
        queries = q[:, :, rows] / q.shape[-1] ** 0.5
        total = torch.zeros_like(queries)
        top = torch.full_like(queries[..., 0], float("-inf"))
        mass = torch.zeros_like(top)
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            scores = queries @ k[:, :, columns].mT
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = scores.masked_fill(~readable, float("-inf"))
            new = torch.maximum(top, scores.amax(dim=-1))
            weights = (scores - new[..., None]).exp()
            shrink = (top - new).exp()
            mass = mass * shrink + weights.sum(-1)
            total = total * shrink[..., None] + weights @ v[:, :, columns]
            top = new
        out[:, :, rows] = total / mass[..., None]
        lse[:, :, rows] = top + mass.log()
    return out, lse
