"""A linear layer in 8 or 4 bits: forward and both gradients, each operand quantized by a recipe.

    forward    y  (T, F) = x  (T, D) · W   (F, D)^T     tiles along D
    backward   dx (T, D) = dy (T, F) · W^T (D, F)^T     tiles along F
               dW (F, D) = dy^T (F, T) · x^T (D, T)^T   tiles along T

Master weights and matmul results stay in high precision: only the operands are rounded.
The emulation is a float32 matmul of rounded operands: exact products, added in float32. If the
device has FP8 matmuls, per-tensor recipes use them. Kept for backward: x in the recipe's bytes.
Cost: 6 F D FLOPs a token at twice (FP8) or four times (FP4) the rate of BF16. Papers: as in
blocks.py. Lab: e04. Shapes: T tokens  D width in  F width out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minitrain.errors import InputError
from minitrain.model.swap import KEEP, swap_linears
from minitrain.precision.blocks import (
    Quantized,
    Scaling,
    e8m0_scale,
    float32_scale,
    nvfp4_scale,
    power_of_two_up,
    quantize,
    quantize_transposed,
    retile,
    widen,
)
from minitrain.precision.delayed_scaling import (
    ACTIVATION,
    GRADIENT,
    WEIGHT,
    AmaxHistory,
    roll_histories,
)
from minitrain.precision.formats import E2M1, E4M3, E5M2


@dataclass(frozen=True)
class Recipe:
    """The formats of a layer's operands. `history` > 0: delayed scaling over that many steps.

    `retiled`: backward's activations are made from forward's, not from a second copy of the
    original, as DeepSeek-V3 does.
    """

    activation: Scaling
    weight: Scaling
    gradient: Scaling
    history: int = 0
    retiled: bool = False

    def __post_init__(self) -> None:
        whole = all(s.tile is None for s in (self.activation, self.weight, self.gradient))
        if self.history < 0 or (self.history and not whole):
            raise InputError(
                f"history is {self.history} steps: delayed scaling is for one "
                "scale a tensor (tile=None) and 1 or more steps; tiles take history=0"
            )


_WHOLE_E4M3 = Scaling(E4M3, None, float32_scale)
_WHOLE_E5M2 = Scaling(E5M2, None, float32_scale)
_LINE_128 = Scaling(E4M3, (1, 128), power_of_two_up)
_SQUARE_128 = Scaling(E4M3, (128, 128), power_of_two_up)
_MXFP8 = Scaling(E4M3, (1, 32), e8m0_scale)
_MXFP4 = Scaling(E2M1, (1, 32), e8m0_scale)
_NVFP4 = Scaling(E2M1, (1, 16), nvfp4_scale)

CURRENT = Recipe(_WHOLE_E4M3, _WHOLE_E4M3, _WHOLE_E5M2)
DELAYED = replace(CURRENT, history=16)
DEEPSEEK = Recipe(_LINE_128, _SQUARE_128, _LINE_128, retiled=True)
MXFP8 = Recipe(_MXFP8, _MXFP8, _MXFP8)
MXFP4 = Recipe(_MXFP4, _MXFP4, _MXFP4)
NVFP4 = Recipe(_NVFP4, _NVFP4, _NVFP4)


# ---- a matmul of quantized operands ----


def matmul_naive(a: Quantized, b: Quantized, block: int = 128) -> Tensor:
    """a (M, K), b (N, K) -> a b^T (M, N), as hardware does it: products of the unscaled elements,
    every `block` of them times their two scales and into the float32 sum."""
    total = torch.zeros(a.shape[0], b.shape[0], device=a.data.device)
    scales = [q.scales().expand(q.shape) for q in (a, b)]
    for start in range(0, a.shape[1], block):
        part = slice(start, start + block)
        products = a.values()[:, part] @ b.values()[:, part].t()
        # One scale per row and block: the first column's holds for all.
        total += products * scales[0][:, start : start + 1] * scales[1][:, start : start + 1].t()
    return total


def matmul(a: Quantized, b: Quantized) -> Tensor:
    """The same in one matmul: on the device's FP8 units if it has them, else in float32."""
    if has_fp8_matmul(a.data.device) and _fits_units(a, b):
        return scaled_mm(a, b)
    return a.dequantize() @ b.dequantize().t()


def scaled_mm(a: Quantized, b: Quantized) -> Tensor:
    """torch's FP8 matmul: a row-major, b column-major, one scale each."""
    of_a, of_b = (widen(q.scale).reshape(()) * q.outer for q in (a, b))
    return torch._scaled_mm(a.data, b.data.t(), scale_a=of_a, scale_b=of_b, out_dtype=torch.float32)


def has_fp8_matmul(device: torch.device) -> bool:
    """True on NVIDIA GPUs from compute capability 8.9 (Ada, Hopper, Blackwell)."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return nvidia and torch.cuda.get_device_capability(device) >= (8, 9)


def _fits_units(a: Quantized, b: Quantized) -> bool:
    """True for one scale each, K and N multiples of 16, 8 bits, and not both operands in E5M2."""
    forms = {a.scaling.element, b.scaling.element}
    whole = a.scaling.tile is None and b.scaling.tile is None
    return whole and forms in ({E4M3}, {E4M3, E5M2}) and a.shape[1] % 16 == b.shape[0] % 16 == 0


# ---- the layer ----


class _QuantizedMatmul(torch.autograd.Function):
    """x (T, D), W (F, D) -> x W^T (T, F); the quantized operands come from the layer."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, layer: QuantizedLinear, record: bool) -> Tensor:
        q_x = layer.quantized(x, ACTIVATION, record)
        q_weight, q_weight_t = layer.quantized_weight(record)
        retiled = layer.recipe.retiled
        kept = q_x if retiled else quantize_transposed(x, q_x)
        ctx.save_for_backward(*kept.tensors, *q_weight_t.tensors)
        ctx.kept, ctx.weight_t, ctx.layer = _form(kept), _form(q_weight_t), layer
        ctx.dtypes = x.dtype, weight.dtype
        return matmul(q_x, q_weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        saved, layer = ctx.saved_tensors, ctx.layer
        q_dy = layer.quantized(dy, GRADIENT, True)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = matmul(q_dy, Quantized(*saved[3:], *ctx.weight_t)).to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            kept = Quantized(*saved[:3], *ctx.kept)
            x_t = retile(kept) if layer.recipe.retiled else kept  # (D, T)
            dw = matmul(quantize_transposed(dy, q_dy), x_t).to(ctx.dtypes[1])
        return dx, dw, None, None


def _form(quantized: Quantized) -> tuple[tuple[int, int], Scaling]:
    return quantized.shape, quantized.scaling


class QuantizedLinear(nn.Linear):
    """nn.Linear whose three matmuls are quantized; its weight is the original layer's tensor."""

    def __init__(self, linear: nn.Linear, recipe: Recipe):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias, self.recipe = linear.weight, linear.bias, recipe
        device = linear.weight.device
        self.amax = AmaxHistory(recipe.history, device) if recipe.history else None
        self.keeps_casts = False  # across microbatches, until `after_step`
        self.kept_casts: tuple[Quantized, Quantized] | None = None
        self.kept_version = -1

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., F), in autocast's dtype if that is on."""
        if x.numel() == 0:  # an expert without tokens has no scales
            return nn.Linear.forward(self, x)
        rows, kind = rearrange(x, "... d -> (...) d"), x.device.type  # (T, D)
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        with torch.autocast(kind, enabled=False):  # or the emulation would be rounded to bfloat16
            y = _QuantizedMatmul.apply(rows, self.weight, self, torch.is_grad_enabled())
            y = y if self.bias is None else y + self.bias
        return y.to(dtype).reshape(*x.shape[:-1], self.out_features)

    def quantized(self, matrix: Tensor, role: int, record: bool) -> Quantized:
        """Quantizes one operand; evaluation (record=False) does not touch the history."""
        recipe = self.recipe
        scaling = (recipe.activation, recipe.weight, recipe.gradient)[role]
        if self.amax is None:
            return quantize(matrix, scaling)
        now = matrix.detach().float().abs().amax()
        return quantize(matrix, scaling, self.amax.amax(role, now, record).reshape(1, 1))

    def quantized_weight(self, record: bool) -> tuple[Quantized, Quantized]:
        """W (F, D) and W^T (D, F); the same for all microbatches of a step.

        Loading a state increments the weight's version; torch's fused AdamW does not, so
        `after_step` must be called.
        """
        if self.kept_casts is not None and self.kept_version == self.weight._version:
            return self.kept_casts
        weight = self.weight.detach()
        q_weight = self.quantized(weight, WEIGHT, record)
        casts = q_weight, quantize_transposed(weight, q_weight)
        self.kept_casts = casts if self.keeps_casts and record else None
        self.kept_version = self.weight._version
        return casts


# ---- converting a model ----


def convert(
    model: nn.Module, recipe: Recipe, keep: Collection[str] = KEEP, example: Any = None
) -> nn.Module:
    """Replaces the linear layers of `model`, in place, except those that `keep` names.

    Embedding, head, router, norms and attention itself stay as they are: they are few FLOPs, and
    sensitive. Parameters stay the same tensors, with the same names. `keep`, `example`: as in
    model/swap.py, which checks that all new layers are called.
    """
    swap_linears(model, lambda linear: QuantizedLinear(linear, recipe), keep, example)
    return model


def after_step(
    model: nn.Module, all_reduce_max: Callable[[Tensor], object] = lambda tensor: tensor
) -> None:
    """Drops the weights' casts and updates the histories, once the weights have changed."""
    for module in model.modules():
        if isinstance(module, QuantizedLinear):
            module.kept_casts = None
    roll_histories(model, all_reduce_max)


def follow(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    all_reduce_max: Callable[[Tensor], object] = lambda tensor: tensor,
) -> None:
    """Makes every `optimizer.step` call `after_step`; a weight is then cast once a step."""
    for module in model.modules():
        if isinstance(module, QuantizedLinear):
            module.keeps_casts = True
    optimizer.register_step_post_hook(lambda *_: after_step(model, all_reduce_max))
