# exercise: gptq
# how it differs: corrections are pulled, not pushed: a group, a block and a column fetch what
# earlier errors ask of them, nothing beyond is ever written; U from the Cholesky factor of the
# reversed H by a triangular solve, without an inverse
import torch


def gptq(w, h, bits: int, group: int, block: int = 128, damping: float = 0.01):
    rows, width = w.shape
    m = 2 ** (bits - 1) - 1
    d = h.diagonal()
    others = d[d != 0]
    fill = others.mean() if len(others) else torch.ones((), dtype=h.dtype)
    d = torch.where(d == 0, fill, d)
    damped = h - torch.diag(h.diagonal()) + torch.diag(d + damping * d.mean())
    lower = torch.linalg.cholesky(damped.flip(0, 1))
    eye = torch.eye(width, dtype=h.dtype)
    u = torch.linalg.solve_triangular(lower.flip(0, 1), eye, upper=True)

    whole = w.double()
    e = torch.zeros(rows, width, dtype=torch.float64)
    codes = torch.zeros(rows, width, dtype=torch.float64)
    scales = []
    for g in range(0, width, group):
        inside = slice(g, min(g + group, width))
        now = whole[:, inside] - e[:, :g] @ u[:g, inside]
        scales.append(quantize_absmax(now.float(), bits, group)[1][:, :1])  # noqa: F821
        s = scales[-1][:, 0].double()
        for b in range(inside.start, inside.stop, block):
            end = min(b + block, inside.stop)
            mine = now[:, b - g : end - g] - e[:, g:b] @ u[g:b, b:end]
            for j in range(b, end):
                column = mine[:, j - b] - e[:, b:j] @ u[b:j, j]
                codes[:, j] = torch.clamp(torch.round(column / s), -m, m)
                e[:, j] = (column - s * codes[:, j]) / u[j, j]
    return codes.to(torch.int8), torch.hstack(scales)
