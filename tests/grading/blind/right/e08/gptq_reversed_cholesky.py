# right: U from the Cholesky factor of H turned around (no inverse of H), rows as the outer axis
import torch


def gptq(w, h, bits: int, group: int, block: int = 128, damping: float = 0.01):
    F, D = w.shape
    m = 2 ** (bits - 1) - 1
    diagonal = h.diagonal()
    alive = diagonal != 0
    fill = diagonal[alive].mean() if alive.any() else torch.tensor(1.0, dtype=h.dtype)
    lifted = torch.where(alive, diagonal, fill)
    lifted = lifted + damping * lifted.mean()
    whole = h - torch.diag(diagonal) + torch.diag(lifted)
    # flip(H) = L L^T, so H = V V^T with V = flip(L) upper; H^-1 = V^-T V^-1
    v = torch.linalg.cholesky(whole.flip(0, 1)).flip(0, 1)
    eye = torch.eye(D, dtype=h.dtype)
    u = torch.linalg.solve_triangular(v, eye, upper=True)
    rest = w.t().double().contiguous()  # (D, F)
    codes = torch.empty(D, F, dtype=torch.int8)
    scales = torch.empty(F, (D + group - 1) // group)
    for number, columns in enumerate(torch.arange(D).split(group)):
        first, last = int(columns[0]), int(columns[-1]) + 1
        _, scale = quantize_absmax(rest[first:last].t().float(), bits, group)
        scales[:, number] = scale[:, 0]
        step = scale[:, 0].double()
        for part in columns.split(block):
            a, b = int(part[0]), int(part[-1]) + 1
            inside = rest[a:b].clone()
            errors = torch.empty_like(inside)
            for i in range(b - a):
                q = (inside[i] / step).round().clamp(-m, m)
                codes[a + i] = q.to(torch.int8)
                errors[i] = (inside[i] - q * step) / u[a + i, a + i]
                inside[i + 1 :] -= u[a + i, a + i + 1 : b, None] * errors[i]
            rest[b:] -= u[a:b, b:].t() @ errors
    return codes.t().contiguous(), scales
