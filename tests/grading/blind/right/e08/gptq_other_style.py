# right: groups outside, blocks inside, inverse by cholesky_inverse, U as the lower factor turned, codes and scales collected
import torch


def gptq(w, h, bits, group, block=128, damping=0.01):
    rows, columns = w.shape
    limit = 2 ** (bits - 1) - 1
    diagonal = h.diagonal()
    alive = diagonal != 0
    fill = diagonal[alive].mean() if alive.any() else torch.ones((), dtype=h.dtype)
    diagonal = torch.where(alive, diagonal, fill)
    damped = h - torch.diag(h.diagonal()) + torch.diag(diagonal + damping * diagonal.mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    U = torch.linalg.cholesky(inverse).t()
    rest = w.to(torch.float64)
    starts = [(b, min(b + block, g + group, columns)) for g in range(0, columns, group)
              for b in range(g, min(g + group, columns), block)]
    codes, scales = [], []
    for begin, end in starts:
        if begin % group == 0:
            scale = quantize_absmax(rest[:, begin : begin + group].float(), bits, group)[1]
            scales.append(scale)
        inner = rest[:, begin:end].clone()
        errors = torch.empty_like(inner)
        for j in range(end - begin):
            column = inner[:, j : j + 1]
            code = torch.clamp(torch.round(column / scale), -limit, limit)
            codes.append(code)
            errors[:, j : j + 1] = (column - code * scale) / U[begin + j, begin + j]
            inner[:, j + 1 :] -= errors[:, j : j + 1] * U[begin + j, begin + j + 1 : end]
        rest = torch.cat([rest[:, :end], rest[:, end:] - errors @ U[begin:end, end:]], dim=1)
    return torch.cat(codes, dim=1).to(torch.int8), torch.cat(scales, dim=1)
