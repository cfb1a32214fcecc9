import torch

STEP = 96


def tiled_backward(q, k, v, d_out, lse, delta, mask):
    """The loops the other way round: a tile of keys meets one tile of queries after another."""
    length, root = q.shape[2], q.shape[-1] ** 0.5
    dq, dk, dv = (torch.zeros_like(z) for z in (q, k, v))
    for left in range(0, length, STEP):
        keys, values = k[:, :, left : left + STEP], v[:, :, left : left + STEP]
        for top in range(left, length, STEP):
            rows = slice(top, min(top + STEP, length))
            columns = slice(left, min(left + STEP, length))
            scores = q[:, :, rows] @ keys.mT / root
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                if not readable.any():
                    continue
                scores = scores.masked_fill(~readable, float("-inf"))
            weights = torch.exp(scores - lse[:, :, rows].unsqueeze(-1))
            d_scores = d_out[:, :, rows] @ values.mT
            d_scores = weights * (d_scores - delta[:, :, rows].unsqueeze(-1)) / root
            dv[:, :, columns] += weights.mT @ d_out[:, :, rows]
            dk[:, :, columns] += d_scores.mT @ q[:, :, rows]
            dq[:, :, rows] += d_scores @ keys
    return dq, dk, dv
