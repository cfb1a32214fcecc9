# right: keeps out and lse normalized at all times and merges each tile by logaddexp.
import torch
from minitrain.model.attention.mask import Mask

ROWS = 128
COLUMNS = 128


def tiles(places, size):
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


def tiled_forward(q, k, v, mask: Mask):
    length, scale = q.size(2), q.size(3) ** -0.5
    outs, lses = [], []
    for rows in tiles(range(length), ROWS):
        query = q.narrow(2, rows.start, rows.stop - rows.start).mul(scale)
        out = torch.zeros_like(query)
        lse = torch.full_like(query[..., :1], float("-inf"))
        for columns in tiles(mask.keys(rows, length), COLUMNS):
            scores = torch.einsum("bhic,bhjc->bhij", query, k[:, :, columns])
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = torch.where(readable, scores, float("-inf"))
            both = torch.logaddexp(lse, scores.logsumexp(-1, keepdim=True))
            out = out * (lse - both).exp() + (scores - both).exp() @ v[:, :, columns]
            lse = both
        outs.append(out)
        lses.append(lse.squeeze(-1))
    return torch.cat(outs, dim=2), torch.cat(lses, dim=2)
