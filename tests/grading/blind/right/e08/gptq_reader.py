# a reader's answer to `gptq`, in which others made the mistakes of wrong/e08/gptq_reader.diff

import torch


def gptq(w, h, bits: int, group: int, block: int = 128, damping: float = 0.01):
    m = 2 ** (bits - 1) - 1
    w = w.to(torch.float64, copy=True)
    rows, width = w.shape
    h = h.clone()
    d = h.diagonal()
    dead = d == 0
    d[dead] = d[~dead].mean() if (~dead).any() else 1.0
    d += damping * d.mean()
    u = torch.linalg.cholesky(torch.linalg.inv(h), upper=True)
    codes = torch.zeros(rows, width, dtype=torch.int8)
    scales = []
    for left in range(0, width, group):
        right = min(left + group, width)
        biggest = w[:, left:right].abs().amax(dim=1, keepdim=True)
        scale = (biggest.float() / m).clamp(min=1e-30)
        scales.append(scale)
        for start in range(left, right, block):
            stop = min(start + block, right)
            errors = torch.zeros(rows, stop - start, dtype=torch.float64)
            for j in range(start, stop):
                q = (w[:, j] / scale[:, 0]).round().clamp(-m, m)
                codes[:, j] = q.to(torch.int8)
                e = (w[:, j] - q * scale[:, 0]) / u[j, j]
                w[:, j:stop] -= torch.outer(e, u[j, j:stop])
                errors[:, j - start] = e
            w[:, stop:] -= errors @ u[start:stop, stop:]
    return codes, torch.cat(scales, dim=1)
