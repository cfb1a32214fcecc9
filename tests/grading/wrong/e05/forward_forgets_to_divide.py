# exercise: tiled_forward
# says: `total` was never divided by `mass`

import torch

ROWS = 128
COLUMNS = 128


def tiles(places, size):
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


def tiled_forward(q, k, v, mask):
    out, lse = torch.empty_like(q), torch.empty_like(q[..., 0])
    for rows in tiles(range(q.shape[2]), ROWS):
        queries = q[:, :, rows] / q.shape[-1] ** 0.5
        total, mass = torch.zeros_like(queries), torch.zeros_like(queries[..., 0])
        top = torch.full_like(mass, -torch.inf)
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            scores = queries @ k[:, :, columns].mT
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = scores.masked_fill(~readable, -torch.inf)
            new = torch.maximum(top, scores.amax(dim=-1))
            weights, shrink = (scores - new[..., None]).exp(), (top - new).exp()
            mass = mass * shrink + weights.sum(dim=-1)
            total = total * shrink[..., None] + weights @ v[:, :, columns]
            top = new
        out[:, :, rows], lse[:, :, rows] = total, top + mass.log()
    return out, lse
