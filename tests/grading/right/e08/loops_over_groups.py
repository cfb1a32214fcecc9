import torch


def bounds(width, group):
    return [(a, min(a + group, width)) for a in range(0, width, group)]


def quantize_absmax(w, bits, group):
    m = 2 ** (bits - 1) - 1
    codes = torch.zeros(w.shape, dtype=torch.int8)
    scales = []
    for a, b in bounds(w.shape[1], group):
        part = w[:, a:b]
        s = part.abs().max(1).values / m
        s[s == 0] = 1.0
        scales.append(s)
        codes[:, a:b] = torch.round(part / s.unsqueeze(1)).to(torch.int8)
    return codes, torch.stack(scales, 1)


def quantize_zero_point(w, bits, group):
    n = 2**bits - 1
    codes, scales, zeros = torch.zeros(w.shape, dtype=torch.uint8), [], []
    for a, b in bounds(w.shape[1], group):
        part = torch.cat([w[:, a:b], torch.zeros(len(w), 1)], 1)
        low, high = torch.aminmax(part, dim=1)
        s = (high - low) / n
        s = torch.where(s > 0, s, torch.ones_like(s))
        z = torch.round(-low / s)
        scales.append(s)
        zeros.append(z.to(torch.uint8))
        codes[:, a:b] = (
            (torch.round(w[:, a:b] / s[:, None]) + z[:, None]).clamp(0, n).to(torch.uint8)
        )
    return codes, torch.stack(scales, 1), torch.stack(zeros, 1)


def llm_int8(x, codes, scale, multiply, threshold=6.0):
    """The outliers are left out of both matrices."""
    big = (x.abs() >= threshold).any(0)
    few, rest = big.nonzero()[:, 0], (~big).nonzero()[:, 0]
    y = torch.zeros(len(x), len(codes))
    part = x[:, rest]
    s = part.abs().max(1, keepdim=True).values / 127 if len(rest) else torch.ones(len(x), 1)
    s = torch.where(s > 0, s, torch.ones_like(s))
    q = torch.round(part / s).to(torch.int8)
    y += multiply(q, codes[:, rest].contiguous()).float() * s * scale[:, 0]
    if len(few):
        y += x[:, few] @ (codes[:, few].float() * scale).T
    return y


def gptq(w, h, bits, group, block=128, damping=0.01):
    """The cuts of blocks and groups in one list; updates in place."""
    m, width = 2 ** (bits - 1) - 1, w.shape[1]
    w, h = w.to(torch.float64).clone(), h.to(torch.float64).clone()
    dead = torch.diag(h) == 0
    mean = torch.diag(h)[~dead].mean() if (~dead).any() else torch.tensor(1.0, dtype=torch.float64)
    h[dead, dead] = mean
    h += damping * torch.diag(h).mean() * torch.eye(width, dtype=torch.float64)
    u = torch.linalg.cholesky(torch.linalg.inv(h)).mT
    starts = sorted({*range(0, width, group), *range(0, width, block)})
    codes = torch.zeros(w.shape, dtype=torch.int8)
    scale = torch.zeros(len(w), -(-width // group))
    for a, b in zip(starts, [*starts[1:], width]):
        if a % group == 0:
            s = w[:, a : a + group].abs().amax(1) / m
            scale[:, a // group] = torch.where(s > 0, s, torch.ones_like(s))
        own = scale[:, a // group].double()
        spread = torch.zeros(len(w), b - a, dtype=torch.float64)
        for j in range(a, b):
            q = torch.round(w[:, j] / own).clamp(-m, m)
            codes[:, j] = q.to(torch.int8)
            spread[:, j - a] = (w[:, j] - q * own) / u[j, j]
            w[:, j + 1 : b] -= spread[:, j - a, None] * u[j, j + 1 : b]
        w[:, b:] -= spread @ u[a:b, b:]
    return codes, scale


def awq(w, mean_abs, h, bits, group, steps=20):
    m, best, errors = 2 ** (bits - 1) - 1, None, []
    safe = torch.maximum(mean_abs, torch.tensor(1e-4))
    for k in range(steps):
        s = safe.pow(k / steps)
        s = s / torch.sqrt(s.amax() * s.amin())
        kept = torch.zeros_like(w)
        for a, b in bounds(w.shape[1], group):
            part = w[:, a:b] * s[a:b]
            step = part.abs().amax(1, keepdim=True) / m
            step = torch.where(step > 0, step, torch.ones_like(step))
            kept[:, a:b] = torch.round(part / step).clamp(-m, m) * step / s[a:b]
        error = torch.einsum("fi,ij,fj->", kept - w, h, kept - w).item()
        if not errors or error < min(errors):
            best = s
        errors.append(error)
    return best, errors


def smooth(norm, linears, max_abs, alpha=0.5):
    joined = torch.cat([linear.weight.detach() for linear in linears])
    columns = joined.abs().max(0).values.clamp_min(1e-5)
    s = max_abs.clamp_min(1e-5).pow(alpha) / columns.pow(1 - alpha)
    norm.weight.data.div_(s)
    for linear in linears:
        linear.weight.data.mul_(s)
    return s


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, scale, bits):
        m = 2 ** (bits - 1) - 1
        codes = torch.round(w / scale)
        ctx.save_for_backward((codes >= -m) & (codes <= m))
        return torch.clamp(codes, -m, m) * scale

    @staticmethod
    def backward(ctx, gradient):
        (inside,) = ctx.saved_tensors
        return gradient * inside, None, None


def fake_quantize(w, scale, bits):
    return Straight.apply(w, scale, bits)
