# exercise: gptq
# says: End blocks where a group ends
# Blocks are cut from column 0 on and run over the starts of groups: a group's scale is fitted
# at its first column, while its columns beyond the block are still stale.

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
    for start in range(0, width, block):
        stop = min(start + block, width)
        errors = torch.zeros(rows, stop - start, dtype=torch.float64)
        for j in range(start, stop):
            if j % group == 0:
                biggest = w[:, j : j + group].abs().amax(dim=1, keepdim=True)
                scale = (biggest.float() / m).clamp(min=1e-30)
                scales.append(scale)
            q = (w[:, j] / scale[:, 0]).round().clamp(-m, m)
            codes[:, j] = q.to(torch.int8)
            e = (w[:, j] - q * scale[:, 0]) / u[j, j]
            w[:, j:stop] -= torch.outer(e, u[j, j:stop])
            errors[:, j - start] = e
        w[:, stop:] -= errors @ u[start:stop, stop:]
    return codes, torch.cat(scales, dim=1)
