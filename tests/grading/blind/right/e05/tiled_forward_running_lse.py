# right: keeps the mean of the values so far and its log-sum-exp, joined with each tile's by logaddexp; no maximum, no division at the end
import torch

from minitrain.model.attention.mask import Mask

ROWS = 128
COLUMNS = 128


def tiled_forward(q, k, v, mask: Mask):
    scale = q.shape[-1] ** -0.5
    out, lse = torch.zeros_like(q), torch.full_like(q[..., 0], -torch.inf)
    for rows in tiles(range(q.shape[2]), ROWS):
        mean, past = out[:, :, rows], lse[:, :, rows]
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            scores = torch.matmul(q[:, :, rows], k[:, :, columns].transpose(2, 3)).mul_(scale)
            allowed = mask.tile(rows, columns, q.device)
            if allowed is not None:
                scores.masked_fill_(allowed.logical_not(), -torch.inf)
            now = torch.logaddexp(past, torch.logsumexp(scores, dim=-1))
            scores.sub_(now.unsqueeze(-1)).exp_()
            mean = mean * (past - now).exp().unsqueeze(-1) + scores @ v[:, :, columns]
            past = now
        out[:, :, rows], lse[:, :, rows] = mean, past
    return out, lse
