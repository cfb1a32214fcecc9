# exercise: gptq
# says: that is with the inverse of H itself
# uses the inverse of H itself in place of its Cholesky factor U, the same inverse for every
# column

import torch


def gptq(w, h, bits: int, group: int, block: int = 128, damping: float = 0.01):
    F, D = w.shape
    m = 2 ** (bits - 1) - 1
    H = h.clone()
    diagonal = torch.diagonal(H)
    dead = diagonal == 0
    if dead.all():
        diagonal.fill_(1.0)
    else:
        diagonal[dead] = diagonal[~dead].mean()
    diagonal += damping * diagonal.mean()
    U = torch.linalg.inv(H)
    W = w.double()
    codes = torch.zeros(F, D, dtype=torch.int8)
    scales = []
    for g0 in range(0, D, group):
        g1 = min(g0 + group, D)
        _, s = quantize_absmax(W[:, g0:g1].float(), bits, group)
        scales.append(s)
        for b0 in range(g0, g1, block):
            b1 = min(b0 + block, g1)
            E = torch.zeros(F, b1 - b0, dtype=torch.float64)
            for j in range(b0, b1):
                q = torch.round(W[:, j] / s[:, 0]).clamp(-m, m)
                codes[:, j] = q.to(torch.int8)
                e = (W[:, j] - q * s[:, 0]) / U[j, j]
                W[:, j:b1] -= torch.outer(e, U[j, j:b1])
                E[:, j - b0] = e
            W[:, b1:] -= E @ U[b0:b1, b1:]
    return codes, torch.cat(scales, dim=1)
