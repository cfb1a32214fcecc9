# right: the mass is one more column of the values (a column of ones), key tiles are read from the last to the first, results are concatenated
import torch
from minitrain.model.attention.mask import Mask

ROWS = 128
COLUMNS = 128


def tiles(places, size):  # as given in the notebook
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


def tiled_forward(q, k, v, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    outs, sums = [], []
    for rows in tiles(range(q.shape[2]), ROWS):
        queries = q[:, :, rows] * q.shape[-1] ** -0.5
        both = queries.new_zeros(*queries.shape[:-1], v.shape[-1] + 1)
        top = queries.new_full((*queries.shape[:-1], 1), -torch.inf)
        for columns in reversed(list(tiles(mask.keys(rows, k.shape[2]), COLUMNS))):
            scores = torch.einsum("bhic,bhjc->bhij", queries, k[:, :, columns])
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = torch.where(readable, scores, -torch.inf)
            new = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
            # a row that may read nothing yet: exp(-inf - 0), not exp(-inf + inf)
            base = new.masked_fill(new == -torch.inf, 0)
            extended = torch.nn.functional.pad(v[:, :, columns], (0, 1), value=1.0)
            both = both * (top - base).exp() + (scores - base).exp() @ extended
            top = new
        total, mass = both[..., :-1], both[..., -1:]
        outs.append(total / mass)
        sums.append((top + mass.log()).squeeze(-1))
    return torch.cat(outs, dim=2), torch.cat(sums, dim=2)


def tiled_backward(q, k, v, d_out, lse, delta, mask: Mask) -> tuple[torch.Tensor, ...]:
    scale = q.shape[-1] ** -0.5
    parts, dk, dv = [], torch.zeros_like(k), torch.zeros_like(v)
    for rows in tiles(range(q.shape[2]), ROWS):
        queries, arriving = q[:, :, rows], d_out[:, :, rows]
        sums, deltas = lse[:, :, rows].unsqueeze(-1), delta[:, :, rows].unsqueeze(-1)
        part = torch.zeros_like(queries)
        for columns in reversed(list(tiles(mask.keys(rows, k.shape[2]), COLUMNS))):
            scores = torch.einsum("bhic,bhjc->bhij", queries, k[:, :, columns]) * scale
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = torch.where(readable, scores, -torch.inf)
            p = (scores - sums).exp()
            dv[:, :, columns] += torch.einsum("bhij,bhic->bhjc", p, arriving)
            ds = torch.einsum("bhic,bhjc->bhij", arriving, v[:, :, columns]) - deltas
            ds = ds * p * scale
            part = part + ds @ k[:, :, columns]
            dk[:, :, columns] += ds.transpose(-1, -2) @ queries
        parts.append(part)
    return torch.cat(parts, dim=2), dk, dv
