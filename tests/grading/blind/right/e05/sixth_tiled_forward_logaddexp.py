# exercise: tiled_forward
# differs: goes on with a normalised result and its log-sum-exp (logaddexp) instead of total, mass
# and top; tiled_backward lists the pairs of tiles first and goes through them from the last to the
# first, by einsum, with the scale on d_scores.
import math
import torch
from minitrain.model.attention.mask import Mask


def pairs_of_tiles(mask, queries, keys):
    for rows in tiles(range(queries), ROWS):
        for columns in tiles(mask.keys(rows, keys), COLUMNS):
            yield rows, columns


def tiled_forward(q, k, v, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:3], -math.inf, dtype=q.dtype, device=q.device)
    for rows, columns in pairs_of_tiles(mask, q.shape[2], k.shape[2]):
        scores = torch.einsum("bhrc,bhsc->bhrs", q[:, :, rows], k[:, :, columns])
        scores = scores / math.sqrt(q.shape[-1])
        readable = mask.tile(rows, columns, q.device)
        if readable is not None:
            scores = torch.where(readable, scores, -math.inf)
        before = lse[:, :, rows].clone()
        new = torch.logaddexp(before, torch.logsumexp(scores, dim=-1))
        safe = torch.where(new.isinf(), torch.zeros_like(new), new)
        part = torch.exp(scores - safe.unsqueeze(-1)) @ v[:, :, columns]
        share = torch.exp(before - safe).unsqueeze(-1)
        out[:, :, rows] = out[:, :, rows] * share + part
        lse[:, :, rows] = new
    return out, lse


def tiled_backward(
    q, k, v, d_out, lse, delta, mask: Mask
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale = 1 / math.sqrt(q.shape[-1])
    dq, dk, dv = map(lambda z: torch.zeros(z.shape, dtype=z.dtype, device=z.device), (q, k, v))
    every = list(pairs_of_tiles(mask, q.shape[2], k.shape[2]))
    for rows, columns in reversed(every):
        at, to = (slice(None), slice(None), rows), (slice(None), slice(None), columns)
        scores = scale * torch.einsum("bhrc,bhsc->bhrs", q[at], k[to])
        readable = mask.tile(rows, columns, q.device)
        if readable is not None:
            scores = scores.masked_fill(readable.logical_not(), -math.inf)
        weights = torch.exp(scores - lse[at].unsqueeze(-1))
        dv[to] += torch.einsum("bhrs,bhrc->bhsc", weights, d_out[at])
        d_weights = torch.einsum("bhrc,bhsc->bhrs", d_out[at], v[to])
        d_scores = scale * weights * (d_weights - delta[at].unsqueeze(-1))
        dq[at] += torch.einsum("bhrs,bhsc->bhrc", d_scores, k[to])
        dk[to] += torch.einsum("bhrs,bhrc->bhsc", d_scores, q[at])
    return dq, dk, dv
