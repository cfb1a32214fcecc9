# right: U comes from the Cholesky factor of H turned round, by a triangular solve, without an explicit inverse; blocks are cut from a list of bounds.
import torch


def gptq(w, h, bits: int, group: int, block: int = 128, damping: float = 0.01):
    top = 2 ** (bits - 1) - 1
    left = w.double().clone()
    rows, width = left.shape
    diagonal = torch.diagonal(h).double()
    alive = diagonal != 0
    mean = diagonal[alive].mean() if alive.any() else diagonal.new_ones(())
    filled = torch.where(alive, diagonal, mean)
    hessian = h.double() + torch.diag(filled - diagonal + damping * filled.mean())
    lower = torch.linalg.cholesky(hessian.flip(0, 1))
    eye = torch.eye(width, dtype=torch.float64, device=w.device)
    u = torch.linalg.solve_triangular(lower, eye, upper=False).flip(0, 1)

    codes = torch.empty(rows, width, dtype=torch.int8, device=w.device)
    scale = torch.empty(rows, -(-width // group), device=w.device)
    starts = sorted({s for g in range(0, width, group) for s in range(g, min(g + group, width), block)})
    for start, stop in zip(starts, starts[1:] + [width]):
        g = start // group
        if start % group == 0:
            largest = left[:, start : start + group].float().abs().amax(dim=1)
            scale[:, g] = (largest / top).clamp(min=torch.finfo(torch.float32).tiny)
        step = scale[:, g].double()
        part, errors = left[:, start:stop].clone(), []
        for k in range(stop - start):
            j = start + k
            q = torch.clamp(torch.round(part[:, k] / step), -top, top)
            codes[:, j] = q.to(torch.int8)
            e = (part[:, k] - q * step) / u[j, j]
            part[:, k + 1 :] -= e[:, None] * u[j, j + 1 : stop][None, :]
            errors.append(e)
        left[:, stop:] -= torch.stack(errors, dim=1) @ u[start:stop, stop:]
    return codes, scale
