"""Adam with its two moments in 8 bits each: 2 bytes of state a parameter instead of 8.

The moments of a tensor span many powers of ten, so the 256 levels are spaced like floats with a
moving point (a dynamic map): few leading zeros, many digits; many zeros, few digits. Blocks of 256
have a scale each, so that an outlier affects only its own block. Steps are computed in float32.

    signed m      ±[1e-7 .. 1], 127 levels each, and 0
    unsigned v     [1e-7 .. 1], 254 levels, 0 and 1

If v is rounded to 0 but m is not, the step is m / eps: so a v above 0 gets at least the lowest
level. Within 5% of float32's trajectory after 60 steps (tests/…/test_rules.py).
Cost: 2 + 8/256 bytes a parameter. Paper: Dettmers et al. 2022 (arXiv:2110.02861). Labs: e04, e07.
Shapes: P parameters  b block  K = ⌈P/b⌉ blocks.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.optimizers.adamw import NaiveAdamW

BLOCK = 256
SMALL = 4096  # parameters; smaller tensors (norms, biases) take few bytes, and stay in float32
DECADES = 7


@lru_cache
def dynamic_map(signed: bool) -> Tensor:
    """The 256 levels, ascending, from -1 or 0 to 1.

    In the decade [10^-k-1, 10^-k] the magnitudes are the midpoints of equal intervals: 2^(6-k) of
    them, twice as many without a sign bit. Each further leading zero costs one fraction bit.
    """
    levels = []
    for decade in range(DECADES):
        parts = 2 ** (DECADES - 1 - decade + (not signed))
        edges = torch.linspace(0.1, 1.0, parts + 1, dtype=torch.float64)
        levels.append((edges[:-1] + edges[1:]) / 2 * 10.0**-decade)
    positive = torch.cat(levels)
    both = [positive, -positive] if signed else [positive]
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return torch.cat([*both, ends]).sort().values.float()


def quantize_blocks(x: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """x of P numbers -> the nearest levels (K, b) uint8, and the scale of each block (K, 1)."""
    blocks = F.pad(x.flatten(), (0, -x.numel() % BLOCK)).unflatten(0, (-1, BLOCK))  # (K, b)
    scale = blocks.abs().amax(dim=1, keepdim=True)
    levels = dynamic_map(signed).to(x.device)
    middles = (levels[:-1] + levels[1:]) / 2
    fraction = blocks / scale.clamp(min=torch.finfo(torch.float32).tiny)
    codes = torch.bucketize(fraction, middles, out_int32=True)
    if not signed:
        codes.clamp_(min=(blocks > 0).int())  # level 0 is reserved for exact 0
    return codes.to(torch.uint8), scale


def dequantize_blocks(codes: Tensor, scale: Tensor, signed: bool, like: Tensor) -> Tensor:
    """(K, b), (K, 1) -> float32 in `like`'s shape."""
    levels = dynamic_map(signed).to(codes.device)
    chosen = levels.index_select(0, codes.flatten().int())  # twice as fast as levels[codes]
    values = chosen.view(codes.shape).mul_(scale)
    return values.flatten()[: like.numel()].view_as(like)


class Adam8bit(NaiveAdamW):
    """AdamW's rule and AdamW's rates, with moments in 8 bits."""

    def start(self, weight: Tensor, group: dict) -> dict:
        zeros = weight.new_zeros(weight.shape, dtype=torch.float32)
        state = {"step": torch.tensor(0.0)}
        if weight.numel() < SMALL:
            return {**state, "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        mean, mean_scale = quantize_blocks(zeros, signed=True)
        square, square_scale = quantize_blocks(zeros, signed=False)
        codes = {"exp_avg_codes": mean, "exp_avg_sq_codes": square}
        return {**state, **codes, "exp_avg_scale": mean_scale, "exp_avg_sq_scale": square_scale}

    def move(self, weight: Tensor, grad: Tensor, group: dict, state: dict) -> None:
        state["step"] += 1
        step, (beta1, beta2) = state["step"].item(), group["betas"]
        mean = read(state, "exp_avg", True, weight)
        square = read(state, "exp_avg_sq", False, weight)
        mean.lerp_(grad.float(), 1 - beta1)
        square.mul_(beta2).addcmul_(grad.float(), grad.float(), value=1 - beta2)
        write(state, "exp_avg", True, mean)
        write(state, "exp_avg_sq", False, square)
        self.descend(weight, mean, square, step, group)


def read(state: dict, name: str, signed: bool, weight: Tensor) -> Tensor:
    """A moment in float32, from 8 bits or, for a small tensor, as stored."""
    if name in state:
        return state[name]
    return dequantize_blocks(state[f"{name}_codes"], state[f"{name}_scale"], signed, weight)


def write(state: dict, name: str, signed: bool, value: Tensor) -> None:
    if name in state:
        state[name].copy_(value)
        return
    state[f"{name}_codes"], state[f"{name}_scale"] = quantize_blocks(value, signed)
