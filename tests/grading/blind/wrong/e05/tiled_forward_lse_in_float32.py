# exercise: tiled_forward
# says: float32 is at work
# mass, top and lse are float32 whatever q is, so float64 inputs get a log-sum-exp of float32;
# the docstring says "in q dtype".

import torch
from minitrain.model.attention.mask import Mask

ROWS = 128  # of a tile
COLUMNS = 128


def tiles(places, size):  # as given in the notebook
    """range(0, 300), 128 -> slices 0:128, 128:256, 256:300"""
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


def tiled_forward(q, k, v, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    B, H, L, C = q.shape
    out, lse = torch.empty_like(q), torch.empty(B, H, L, device=q.device)
    for rows in tiles(range(L), ROWS):
        queries = q[:, :, rows] / C**0.5
        total = torch.zeros_like(queries)
        mass = torch.zeros(queries.shape[:-1], device=q.device)
        top = torch.full_like(mass, -torch.inf)
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            scores = queries @ k[:, :, columns].mT
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = scores.masked_fill(~readable, -torch.inf)
            new = torch.maximum(top, scores.amax(dim=-1).float())
            weights = (scores - new[..., None]).exp()
            shrink = (top - new).exp()
            mass = mass * shrink + weights.sum(-1).float()
            total = total * shrink[..., None] + weights @ v[:, :, columns]
            top = new
        out[:, :, rows] = total / mass[..., None]
        lse[:, :, rows] = top + mass.log()
    return out, lse
