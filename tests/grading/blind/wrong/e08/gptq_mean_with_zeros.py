# exercise: gptq
# says: of which none is 0
# a dead input gets the mean of the whole diagonal, its zeros included, not the mean of the
# others

import torch


def gptq(w, h, bits, group, block=128, damping=0.01):
    F, D = w.shape
    m = 2 ** (bits - 1) - 1
    w = w.double().clone()
    h = h.clone()
    d = h.diagonal()
    dead = d == 0
    d[dead] = d.mean() if (~dead).any() else 1.0
    d += damping * d.mean()
    U = torch.linalg.cholesky(torch.linalg.inv(h), upper=True)
    codes = torch.zeros(F, D, dtype=torch.int8)
    scales = []
    for g in range(0, D, group):
        end = min(g + group, D)
        _, scale = quantize_absmax(w[:, g:end].float(), bits, group)
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
