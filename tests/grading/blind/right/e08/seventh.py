# a reader's own answers, from the notebook alone
import torch
from torch.nn.functional import pad


def quantize_absmax(w: torch.Tensor, bits: int, group: int):
    width = w.shape[1]
    group = min(group, width)
    most = 2 ** (bits - 1) - 1
    tiles = pad(w, (0, -width % group)).unflatten(1, (-1, group))
    scale = (tiles.abs().amax(dim=2) / most).clamp(min=torch.finfo(w.dtype).tiny)
    codes = (tiles / scale[:, :, None]).round().clamp(-most, most)
    return codes.flatten(1)[:, :width].to(torch.int8), scale


def quantize_zero_point(w: torch.Tensor, bits: int, group: int):
    width = w.shape[1]
    group = min(group, width)
    steps = 2**bits - 1
    tiles = pad(w, (0, -width % group)).unflatten(1, (-1, group))
    low = tiles.amin(dim=2).clamp(max=0)
    high = tiles.amax(dim=2).clamp(min=0)
    scale = ((high - low) / steps).clamp(min=torch.finfo(w.dtype).tiny)
    zero = (-low / scale).round()
    codes = (tiles / scale[:, :, None]).round() + zero[:, :, None]
    codes = codes.clamp(0, steps)
    return codes.flatten(1)[:, :width].to(torch.uint8), scale, zero.to(torch.uint8)


def llm_int8(x, codes, scale, multiply, threshold=6.0):
    outlier = (x.abs() >= threshold).any(dim=0)
    regular = x.masked_fill(outlier, 0)
    x_scale = regular.abs().amax(dim=1, keepdim=True) / 127
    x_scale = x_scale.clamp(min=torch.finfo(x.dtype).tiny)
    x_codes = (regular / x_scale).round().to(torch.int8)
    whole = multiply(x_codes, codes) * x_scale * scale.t()
    return whole + x[:, outlier] @ (codes[:, outlier] * scale).t()


@torch.no_grad()
def smooth(norm, linears, max_abs: torch.Tensor, alpha: float = 0.5):
    linears = list(linears)
    largest = [linear.weight.abs().amax(dim=0) for linear in linears]
    columns = torch.stack(largest).amax(dim=0).clamp(min=1e-5)
    s = max_abs.clamp(min=1e-5) ** alpha / columns ** (1 - alpha)
    norm.weight /= s
    for linear in linears:
        linear.weight *= s
    return s


def gptq(w, h, bits: int, group: int, block: int = 128, damping: float = 0.01):
    outputs, width = w.shape
    most = 2 ** (bits - 1) - 1
    h = h.clone()
    diagonal = h.diagonal()
    dead = diagonal == 0
    diagonal[dead] = diagonal[~dead].mean() if not dead.all() else 1.0
    diagonal += damping * diagonal.mean()
    upper = torch.linalg.cholesky(torch.linalg.inv(h), upper=True)
    w = w.to(torch.float64)
    codes = torch.zeros(outputs, width, dtype=torch.int8)
    scales = []
    for left in range(0, width, group):
        right = min(left + group, width)
        scale = quantize_absmax(w[:, left:right].float(), bits, right - left)[1]
        scales.append(scale)
        for start in range(left, right, block):
            stop = min(start + block, right)
            errors = torch.zeros(outputs, stop - start, dtype=torch.float64)
            for j in range(start, stop):
                code = (w[:, j] / scale[:, 0]).round().clamp(-most, most)
                codes[:, j] = code.to(torch.int8)
                error = (w[:, j] - code * scale[:, 0]) / upper[j, j]
                errors[:, j - start] = error
                w[:, j + 1 : stop] -= torch.outer(error, upper[j, j + 1 : stop])
            w[:, stop:] -= errors @ upper[start:stop, stop:]
    return codes, torch.cat(scales, dim=1)


def awq(w, mean_abs, h, bits: int, group: int, steps: int = 20):
    magnitude = mean_abs.clamp(min=1e-4)
    tried, errors = [], []
    for k in range(steps):
        power = magnitude ** (k / steps)
        s = power / (power.max() * power.min()).sqrt()
        codes, scale = quantize_absmax(w * s, bits, group)
        change = dequantize(codes, scale, group) / s - w
        errors.append(((change @ h) * change).sum().item())
        tried.append(s)
    return tried[errors.index(min(errors))], errors


def fake_quantize(w: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    most = 2 ** (bits - 1) - 1
    fixed = scale.detach()
    codes = (w.detach() / fixed).round()
    inside = codes.abs() <= most
    rounded = codes.clamp(-most, most) * fixed
    through = torch.where(inside, w, w.detach())
    return rounded + (through - through.detach())
