# exercise: gptq
# differs: U from a Cholesky factor of H flipped (no inverse of H), and a column gathers its
# corrections when its turn comes instead of being written by each column before
import torch


def gptq(w, h, bits: int, group: int, block: int = 128, damping: float = 0.01):
    rows, columns = w.shape
    m = 2 ** (bits - 1) - 1
    diag = torch.diagonal(h)
    alive = diag != 0
    fill = diag[alive].mean().item() if bool(alive.any()) else 1.0
    diag = torch.where(alive, diag, torch.full_like(diag, fill))
    damped = h - torch.diag(torch.diagonal(h)) + torch.diag(diag)
    damped = damped + damping * diag.mean() * torch.eye(columns, dtype=h.dtype)
    # flipped: H = V V^T with V upper, so H^-1 = U^T U with U = V^-1
    v = torch.linalg.cholesky(damped.flip(0, 1)).flip(0, 1)
    eye = torch.eye(columns, dtype=h.dtype)
    u = torch.linalg.solve_triangular(v, eye, upper=True)

    rest = w.double()
    picked, scales = [], []
    start = 0
    while start < columns:
        if start % group == 0:
            end = min(start + group, columns)
            _, fitted = quantize_absmax(rest[:, start:end].float(), bits, end - start)
            scales.append(fitted)
            s = fitted[:, 0].double()
        stop = min(start + block, end)
        e = rest.new_zeros(rows, stop - start)
        for k, j in enumerate(range(start, stop)):
            column = rest[:, j] - e[:, :k] @ u[start:j, j]
            q = torch.round(column / s).clamp(-m, m)
            picked.append(q)
            e[:, k] = (column - q * s) / u[j, j]
        rest[:, stop:] -= e @ u[start:stop, stop:]
        start = stop
    return torch.stack(picked, dim=1).to(torch.int8), torch.cat(scales, dim=1)
