# a reader's own answers, from the notebook alone
import torch
import torch.nn.functional as F

TINY = torch.finfo(torch.float32).tiny


def tiled(w, group):
    """(F, D) -> (F, ⌈D/group⌉, group), filled up with zeros."""
    return F.pad(w, (0, -w.shape[1] % group)).unflatten(1, (-1, group))


def quantize_absmax(w: torch.Tensor, bits: int, group: int):
    """codes (F, D) int8 from -m to m, and scale (F, ⌈D/group⌉) float32."""
    most, width = 2 ** (bits - 1) - 1, w.shape[1]
    group = min(group, width)
    tiles = tiled(w.detach(), group)
    scale = (tiles.abs().amax(dim=2) / most).clamp(min=TINY)
    codes = (tiles / scale[:, :, None]).round().clamp(-most, most)
    return codes.flatten(1)[:, :width].to(torch.int8), scale


def quantize_zero_point(w: torch.Tensor, bits: int, group: int):
    """codes (F, D) uint8; scale (F, ⌈D/group⌉) float32, zero of the same shape, uint8."""
    steps, columns = 2**bits - 1, w.shape[1]
    spread = tiled(w.detach(), min(group, columns))
    low = spread.amin(dim=2).clamp(max=0)
    high = spread.amax(dim=2).clamp(min=0)
    scale = ((high - low) / steps).clamp(min=TINY)
    zero = (-low / scale).round().clamp(0, steps)
    whole = (spread / scale[:, :, None]).round()
    codes = (whole + zero[:, :, None]).clamp(0, steps)
    return codes.flatten(1)[:, :columns].to(torch.uint8), scale, zero.to(torch.uint8)


def llm_int8(x, codes, scale, multiply, threshold=6.0):
    """y (T, F) float32; columns with outliers in floats, all others in int8."""
    outlier = (x.abs() >= threshold).any(dim=0)
    regular = x.masked_fill(outlier, 0)
    x_scale = (regular.abs().amax(dim=1, keepdim=True) / 127).clamp(min=TINY)
    x_codes = (regular / x_scale).round().clamp(-127, 127).to(torch.int8)
    y = multiply(x_codes, codes) * x_scale * scale.t()
    return y + x[:, outlier] @ (codes[:, outlier] * scale).t()


@torch.no_grad()
def smooth(norm, linears, max_abs: torch.Tensor, alpha: float = 0.5):
    """Moves the channels' sizes from the norm to the columns that read it; returns s."""
    linears = list(linears)
    columns = torch.stack([linear.weight.abs().amax(dim=0) for linear in linears])
    columns = columns.amax(dim=0).clamp(min=1e-5)
    s = max_abs.clamp(min=1e-5) ** alpha / columns ** (1 - alpha)
    norm.weight.div_(s)
    for linear in linears:
        linear.weight.mul_(s)
    return s


def upper_factor(h, damping):
    """U of the inverse of h, which is made invertible on a copy."""
    h = h.to(torch.float64, copy=True)
    diagonal = h.diagonal()  # a view
    dead = diagonal == 0
    diagonal[dead] = 1.0 if dead.all() else diagonal[~dead].mean()
    diagonal += damping * diagonal.mean()
    return torch.linalg.cholesky(torch.linalg.inv(h), upper=True)


def gptq(w, h, bits: int, group: int, block: int = 128, damping: float = 0.01):
    """codes int8 (F, D) and scale float32 (F, ⌈D/group⌉)."""
    most, width = 2 ** (bits - 1) - 1, w.shape[1]
    upper = upper_factor(h, damping)
    work = w.detach().to(torch.float64, copy=True)
    codes = torch.empty(w.shape, dtype=torch.int8, device=w.device)
    scales = []
    for first in range(0, width, group):
        last = min(first + group, width)
        _, scale = quantize_absmax(work[:, first:last].float(), bits, last - first)
        scales.append(scale)
        step = scale[:, 0].double()
        for start in range(first, last, block):
            stop = min(start + block, last)
            part = work[:, start:stop]
            errors = torch.zeros_like(part)
            for j in range(start, stop):
                code = (work[:, j] / step).round().clamp(-most, most)
                error = (work[:, j] - code * step) / upper[j, j]
                part -= torch.outer(error, upper[j, start:stop])
                errors[:, j - start] = error
                codes[:, j] = code.to(torch.int8)
            work[:, stop:] -= errors @ upper[start:stop, stop:]
    return codes, torch.cat(scales, dim=1)


def awq(w, mean_abs, h, bits: int, group: int, steps: int = 20):
    """The best s (D,), and the errors of all ratios."""
    seen = mean_abs.clamp(min=1e-4)
    errors, tried = [], []
    for k in range(steps):
        s = seen ** (k / steps)
        s = s / (s.max() * s.min()).sqrt()
        change = dequantize(*quantize_absmax(w * s, bits, group), group) / s - w
        error = ((change @ h) * change).sum().item()
        errors.append(error)
        tried.append(s)
    return tried[errors.index(min(errors))], errors


def fake_quantize(w: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    """Code times scale, bit for bit; the gradient passes where no code was clamped."""
    top = 2 ** (bits - 1) - 1
    with torch.no_grad():
        rounded = (w / scale).round()
        inside = rounded.abs() <= top
        rounded = rounded.clamp(-top, top) * scale
    through = torch.where(inside, w, w.detach())
    return rounded + (through - through.detach())
