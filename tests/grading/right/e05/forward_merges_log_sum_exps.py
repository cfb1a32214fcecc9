import torch


def tiled_forward(q, k, v, mask, step=64):
    """Each tile as an attention of its own; two are merged by their log-sum-exps."""
    length, outs, lses = q.shape[2], [], []
    for start in range(0, length, step):
        stop = min(start + step, length)
        out, lse = torch.zeros_like(q[:, :, start:stop]), None
        for left in range(0, stop, step):
            right = min(left + step, stop)
            scores = q[:, :, start:stop] @ k[:, :, left:right].transpose(-1, -2)
            scores = scores * q.shape[-1] ** -0.5
            i, j = torch.arange(start, stop)[:, None], torch.arange(left, right)
            scores = scores.where(j <= i, float("-inf"))
            part = scores.logsumexp(-1)
            mine = scores.softmax(-1) @ v[:, :, left:right]
            both = part if lse is None else torch.logaddexp(lse, part)
            old = 0 if lse is None else (lse - both).exp()[..., None] * out
            out, lse = old + (part - both).exp()[..., None] * mine, both
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, 2), torch.cat(lses, 2)
