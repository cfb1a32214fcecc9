import torch


def tiled_forward(q, k, v, mask, step=128):
    """Each tile as an attention of its own; two are merged by their log-sum-exps."""
    length, outs, lses = q.shape[2], [], []
    for start in range(0, length, step):
        rows = slice(start, min(start + step, length))
        out = torch.zeros_like(q[:, :, rows])
        lse = torch.full_like(out[..., 0], float("-inf"))
        keys = mask.keys(rows, length)
        for left in reversed(range(keys.start, keys.stop, step)):
            columns = slice(left, min(left + step, keys.stop))
            scores = q[:, :, rows] @ k[:, :, columns].transpose(-1, -2) * q.shape[-1] ** -0.5
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = scores.where(readable, float("-inf"))
            part = scores.logsumexp(-1)
            mine = (scores.softmax(-1) @ v[:, :, columns]).nan_to_num()
            both = torch.logaddexp(lse, part)
            base = both.masked_fill(both.isneginf(), 0)  # rows that have read nothing yet
            out = (lse - base).exp()[..., None] * out + (part - base).exp()[..., None] * mine
            lse = both
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, 2), torch.cat(lses, 2)
