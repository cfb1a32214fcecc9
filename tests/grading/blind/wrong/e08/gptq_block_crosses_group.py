# exercise: gptq
# says: End blocks where a group ends
# blocks run from 0 in steps of `block` and cross groups' starts: scales are fitted on stale
# columns behind the block

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
    U = torch.linalg.cholesky(torch.linalg.inv(H), upper=True)
    W = w.double()
    codes = torch.zeros(F, D, dtype=torch.int8)
    scales = []
    for b0 in range(0, D, block):
        b1 = min(b0 + block, D)
        E = torch.zeros(F, b1 - b0, dtype=torch.float64)
        for j in range(b0, b1):
            if j % group == 0:
                _, s = quantize_absmax(W[:, j : j + group].float(), bits, group)
                scales.append(s)
            q = torch.round(W[:, j] / s[:, 0]).clamp(-m, m)
            codes[:, j] = q.to(torch.int8)
            e = (W[:, j] - q * s[:, 0]) / U[j, j]
            W[:, j:b1] -= torch.outer(e, U[j, j:b1])
            E[:, j - b0] = e
        W[:, b1:] -= E @ U[b0:b1, b1:]
    return codes, torch.cat(scales, dim=1)
