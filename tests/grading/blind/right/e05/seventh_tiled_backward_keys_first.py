# exercise: tiled_backward
# differs: one flat loop over pairs of tiles, ordered by keys first as flash attention's backward
# is; weights are masked after the exp; queries and d_out are scaled copies, the sums go in by add_
# on narrow views
import torch

from minitrain.model.attention.mask import Mask


def pairs_of(mask, length):
    """(queries, keys) slices, all queries of the first keys first."""
    pairs = [
        (rows, columns)
        for rows in tiles(range(length), ROWS)
        for columns in tiles(mask.keys(rows, length), COLUMNS)
    ]
    return sorted(pairs, key=lambda pair: (pair[1].start, pair[0].start))


def tiled_backward(
    q, k, v, d_out, lse, delta, mask: Mask
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    L, C = q.shape[-2:]
    dq = q.new_zeros(q.shape)
    dk = k.new_zeros(k.shape)
    dv = v.new_zeros(v.shape)
    for rows, columns in pairs_of(mask, L):
        queries, d_rows = q[:, :, rows] / C**0.5, d_out[:, :, rows]
        keys, values = k[:, :, columns], v[:, :, columns]
        weights = queries.matmul(keys.transpose(-1, -2))
        weights = weights.sub_(lse[:, :, rows].unsqueeze(-1)).exp_()
        readable = mask.tile(rows, columns, q.device)
        if readable is not None:
            weights = torch.where(readable, weights, torch.zeros_like(weights))
        d_scores = d_rows.matmul(values.transpose(-1, -2))
        d_scores = d_scores.sub_(delta[:, :, rows].unsqueeze(-1)).mul_(weights)
        dv[:, :, columns].add_(weights.transpose(-1, -2).matmul(d_rows))
        dk[:, :, columns].add_(d_scores.transpose(-1, -2).matmul(queries))
        dq[:, :, rows].add_(d_scores.matmul(keys) / C**0.5)
    return dq, dk, dv
