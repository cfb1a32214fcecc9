"""Quantization as in lab e08: each idea in a few lines on float tensors.

    quantize_absmax, quantize_zero_point    codes, and one scale per group along a row
    llm_int8            int8 products, with the outlier columns in floating point
    gptq                column by column; the remaining ones compensate each error
    awq                 the best of twenty column scales, by output error
    smooth              moves scales from activations into weights
    fake_quantize       rounded forward, straight through backward

Nothing is packed, and groups run only along rows: `formats`, `layers` and `methods` have the rest.
Shapes: F width out  D width in  G groups of a row  g numbers of a group  T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def dequantize(codes: Tensor, scale: Tensor, group: int, zero: Tensor | None = None) -> Tensor:
    """codes (F, D), scale (F, G) -> (F, D) float32; `zero` (F, G): the codes of 0."""
    width = codes.shape[1]
    spread = scale.repeat_interleave(group, dim=1)[:, :width]  # (F, D)
    if zero is None:
        return codes * spread
    return (codes.float() - zero.repeat_interleave(group, dim=1)[:, :width]) * spread


def quantize_absmax(w: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """w (F, D) float32 -> codes int8 (F, D) from -m to m, m = 2^(bits-1) - 1, scale (F, ⌈D/g⌉)."""
    width, m = w.shape[1], 2 ** (bits - 1) - 1
    tiles = torch.nn.functional.pad(w, (0, -width % group)).unflatten(1, (-1, group))  # (F, G, g)
    scale = (tiles.abs().amax(dim=2) / m).clamp(min=torch.finfo(w.dtype).tiny)  # (F, G)
    codes = (tiles / scale[:, :, None]).round().clamp(-m, m)
    return codes.flatten(1)[:, :width].to(torch.int8), scale


def quantize_zero_point(w: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """w (F, D) float32 -> codes uint8 (F, D) from 0 to 2^bits - 1, scale and zero (F, ⌈D/g⌉)."""
    width, n = w.shape[1], 2**bits - 1
    tiles = torch.nn.functional.pad(w, (0, -width % group)).unflatten(1, (-1, group))  # (F, G, g)
    low, high = tiles.amin(dim=2).clamp(max=0), tiles.amax(dim=2).clamp(min=0)
    scale = ((high - low) / n).clamp(min=torch.finfo(w.dtype).tiny)
    zero = (-low / scale).round()
    codes = ((tiles / scale[:, :, None]).round() + zero[:, :, None]).clamp(0, n)
    return codes.flatten(1)[:, :width].byte(), scale, zero.byte()


def llm_int8(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    multiply: Callable[[Tensor, Tensor], Tensor],
    threshold: float = 6.0,
) -> Tensor:
    """x (T, D), codes int8 (F, D), scale (F, 1) -> x Ŵ^T (T, F) float32.

    `multiply(a, b)` is a b^T of int8 matrices (T, D) and (F, D), in int32.
    """
    outlier = x.abs().amax(dim=0) >= threshold  # (D,)
    regular = x.masked_fill(outlier, 0)
    x_scale = regular.abs().amax(dim=1, keepdim=True) / 127  # (T, 1)
    x_scale = x_scale.clamp(min=torch.finfo(x.dtype).tiny)
    x_codes = (regular / x_scale).round().clamp(-127, 127).to(torch.int8)
    y = multiply(x_codes, codes) * x_scale * scale.t()  # (T, F)
    return y + x[:, outlier] @ (codes[:, outlier] * scale).t()


def gptq(
    w: Tensor, h: Tensor, bits: int, group: int, block: int = 128, damping: float = 0.01
) -> tuple[Tensor, Tensor]:
    """w (F, D), h (D, D) = X^T X / T -> codes and scale as `quantize_absmax` gives them."""
    w, h, m = w.double(), h.double().clone(), 2 ** (bits - 1) - 1
    diagonal, dead = h.diagonal(), h.diagonal() == 0
    diagonal[dead] = diagonal.sum() / (~dead).sum() if not dead.all() else 1.0
    diagonal += damping * diagonal.mean()
    upper = torch.linalg.cholesky(torch.linalg.inv(h), upper=True)
    codes, scales, width = torch.empty_like(w, dtype=torch.int8), [], w.shape[1]
    for first in range(0, width, group):
        end = min(first + group, width)
        scales.append(quantize_absmax(w[:, first:end].float(), bits, group)[1])  # (F, 1), fresh
        for start in range(first, end, block):
            stop = min(start + block, end)
            part, errors = w[:, start:stop].clone(), torch.empty_like(w[:, start:stop])
            for j in range(start, stop):
                column, own = part[:, j - start], scales[-1][:, 0].double()
                codes[:, j] = q = (column / own).round().clamp(-m, m)
                errors[:, j - start] = error = (column - q * own) / upper[j, j]
                part -= torch.outer(error, upper[j, start:stop])
            w = torch.cat([w[:, :stop], w[:, stop:] - errors @ upper[start:stop, stop:]], dim=1)
    return codes, torch.cat(scales, dim=1)


def awq(
    w: Tensor, mean_abs: Tensor, h: Tensor, bits: int, group: int, steps: int = 20
) -> tuple[Tensor, list[float]]:
    """The best scale of the columns (D,), and the output error of each ratio k / steps."""
    found, errors = [], []
    for k in range(steps):
        s = mean_abs.clamp(min=1e-4) ** (k / steps)
        s = s / (s.max() * s.min()).sqrt()
        change = dequantize(*quantize_absmax(w * s, bits, group), group) / s - w
        found.append(s)
        errors.append(((change @ h) * change).sum().item())
    return found[errors.index(min(errors))], errors


@torch.no_grad()
def smooth(
    norm: nn.Module, linears: Sequence[nn.Linear], max_abs: Tensor, alpha: float = 0.5
) -> Tensor:
    """In place, the function unchanged: norm.weight / s, and each linear's columns times s (D,)."""
    columns = torch.stack([linear.weight.abs().amax(dim=0) for linear in linears]).amax(dim=0)
    s = max_abs.clamp(min=1e-5) ** alpha / columns.clamp(min=1e-5) ** (1 - alpha)
    norm.weight /= s
    for linear in linears:
        linear.weight *= s
    return s


def fake_quantize(w: Tensor, scale: Tensor, bits: int) -> Tensor:
    """w (F, D), scale (F, 1) -> w rounded; its gradient is 1 where no code was clamped."""
    m = 2 ** (bits - 1) - 1
    scale = scale.detach()
    codes = (w.detach() / scale).round()
    through = torch.where(codes.abs() <= m, w, w.detach())
    return codes.clamp(-m, m) * scale + (through - through.detach())
