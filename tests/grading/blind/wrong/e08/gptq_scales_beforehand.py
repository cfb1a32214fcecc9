# exercise: gptq
# says: on weights that hold every correction so far
# the scales of all groups are fitted at the start, on the weights as they came, not on the
# corrected ones

import torch


def gptq(w, h, bits, group, block=128, damping=0.01):
    F, D = w.shape
    m = 2 ** (bits - 1) - 1
    w = w.double().clone()
    h = h.clone()
    d = h.diagonal()
    dead = d == 0
    d[dead] = d[~dead].mean() if (~dead).any() else 1.0
    d += damping * d.mean()
    U = torch.linalg.cholesky(torch.linalg.inv(h), upper=True)
    codes = torch.zeros(F, D, dtype=torch.int8)
    scales = []
    _, fitted = quantize_absmax(w.float(), bits, group)
    for g in range(0, D, group):
        end = min(g + group, D)
        scale = fitted[:, g // group : g // group + 1]
        scales.append(scale)
        for b in range(g, end, block):
            stop = min(b + block, end)
            errors = torch.zeros(F, stop - b, dtype=torch.float64)
            for j in range(b, stop):
                q = (w[:, j] / scale[:, 0]).round().clamp(-m, m)
                codes[:, j] = q.to(torch.int8)
                e = (w[:, j] - q * scale[:, 0].double()) / U[j, j]
                w[:, j + 1 : stop] -= e[:, None] * U[j, j + 1 : stop]
                errors[:, j - b] = e
            w[:, stop:] -= errors @ U[b:stop, stop:]
    return codes, torch.cat(scales, 1)
