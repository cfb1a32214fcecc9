# exercise: tiled_forward
# says: mask.tile says what may be read
# makes its own causal mask from positions and never asks mask, so a window is ignored; the
# docstring says "A query reads what mask says: all before it, or a window of that".

import torch
from minitrain.model.attention.mask import Mask

ROWS = 128  # of a tile
COLUMNS = 128


def tiles(places, size):  # as given in the notebook
    """range(0, 300), 128 -> slices 0:128, 128:256, 256:300"""
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


def tiled_forward(q, k, v, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    L, C = q.shape[2:]
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:3])
    place = torch.arange(L, device=q.device)
    for rows in tiles(range(L), ROWS):
        queries = q[:, :, rows] / C**0.5
        total = torch.zeros_like(queries)
        mass = queries.new_zeros(queries.shape[:-1])
        top = torch.full_like(mass, -torch.inf)
        for columns in tiles(range(rows.stop), COLUMNS):
            scores = queries @ k[:, :, columns].mT
            future = place[columns] > place[rows, None]
            scores = scores.masked_fill(future, -torch.inf)
            new = torch.maximum(top, scores.amax(dim=-1))
            weights = (scores - new[..., None]).exp()
            shrink = (top - new).exp()
            mass = mass * shrink + weights.sum(-1)
            total = total * shrink[..., None] + weights @ v[:, :, columns]
            top = new
        out[:, :, rows] = total / mass[..., None]
        lse[:, :, rows] = top + mass.log()
    return out, lse
