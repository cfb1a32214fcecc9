# exercise: tiled_forward
# says: each made once

import torch


def tiled_forward(q, k, v, mask, size=128):
    """The log-sum-exp first, the output from it in a second pass over the same tiles."""
    out, lse, length = torch.empty_like(q), torch.empty_like(q[..., 0]), q.shape[2]

    def scored(rows):
        keys = mask.keys(rows, length)
        for left in range(keys.start, keys.stop, size):
            columns = slice(left, min(left + size, keys.stop))
            scores = q[:, :, rows] @ k[:, :, columns].mT / q.shape[-1] ** 0.5
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = scores.masked_fill(~readable, -torch.inf)
            yield columns, scores

    for top in range(0, length, size):
        rows = slice(top, min(top + size, length))
        parts = [scores.logsumexp(-1) for _, scores in scored(rows)]
        lse[:, :, rows] = torch.stack(parts).logsumexp(0)
        out[:, :, rows] = 0
        for columns, scores in scored(rows):
            out[:, :, rows] += (scores - lse[:, :, rows, None]).exp() @ v[:, :, columns]
    return out, lse
