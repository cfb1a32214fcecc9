# exercise: tiled_forward
# differs: carries the log-sum-exp so far and a mean that is normalised all the time (logsumexp of
# a tile, logaddexp), so nothing is divided at the end; einsum instead of @
import torch

from minitrain.model.attention.mask import Mask


def tiled_forward(q, k, v, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    B, H, L, C = q.shape
    outs, logs = [], []
    for rows in tiles(range(L), ROWS):
        queries = q[:, :, rows] * C**-0.5
        mean = torch.zeros_like(queries)
        log = torch.full_like(queries[..., 0], float("-inf"))
        for columns in tiles(mask.keys(rows, L), COLUMNS):
            scores = torch.einsum("bhrc,bhkc->bhrk", queries, k[:, :, columns])
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores.masked_fill_(readable.logical_not(), float("-inf"))
            longer = torch.logaddexp(log, torch.logsumexp(scores, dim=-1))
            # rows that have read nothing so far stay at 0 and -inf
            base = torch.where(longer.isinf(), torch.zeros_like(longer), longer)
            share = scores.sub_(base.unsqueeze(-1)).exp_()
            mean = mean * (log - base).exp().unsqueeze(-1)
            mean = mean + torch.einsum("bhrk,bhkc->bhrc", share, v[:, :, columns])
            log = longer
        outs.append(mean)
        logs.append(log)
    return torch.cat(outs, dim=2), torch.cat(logs, dim=2)
