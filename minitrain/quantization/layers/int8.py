"""W8A8: weights and activations in 8 bits, products added in int32, two scales at the end.

    y = (q_x q_w^T) · s_x · s_w        s_w per row of W; s_x per token, or static

A scale per token costs a pass over x; a static one, from calibration, costs nothing but clamps
larger values. LLM.int8() removes the columns in which some |x| >= 6 from both: they are few, and
are multiplied in floating point, so the other columns' scales need not cover them. Columns are
chosen over all tokens of a call: a token's result depends slightly on its batch.

Paper: Dettmers et al. 2022 (arXiv:2208.07339), section 3.
Shapes: T tokens  D width in  F width out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from minitrain.errors import InputError
from minitrain.quantization.calibration import InputStatistics
from minitrain.quantization.formats.grids import TINY, Absmax
from minitrain.quantization.formats.tiling import Rows, Shape
from minitrain.quantization.formats.weight import Format, GridFormat, QuantizedWeight
from minitrain.quantization.layers.linear import QuantLinear

LARGEST = 127
INT8_ROWS = GridFormat(Absmax(8), Rows())

MakeLayer = Callable[[QuantizedWeight, "Tensor | None", "InputStatistics | None"], QuantLinear]


def is_int8_rows(form: Format, shape: Shape) -> None:
    """InputError where a format is not int8-row."""
    if form != INT8_ROWS:
        raise InputError(
            f"an int8 matmul needs one scale a row, and the weight is {form.name}: "
            "quantize it to int8-row"
        )


class Int8Linear(QuantLinear):
    """y = x W^T + bias in int8. `input_scale` (): one for all tokens; None: one per token.

    `threshold`: columns that reach it are multiplied in floating point. Gradients are those of Ŵ.
    """

    def __init__(
        self,
        weight: QuantizedWeight,
        bias: Tensor | None = None,
        input_scale: Tensor | None = None,
        threshold: float = math.inf,
    ):
        is_int8_rows(weight.format, weight.shape)
        super().__init__(weight, bias)
        self.threshold = threshold
        self.register_buffer("input_scale", input_scale)

    @property
    def settings(self) -> dict[str, object]:
        threshold = None if math.isinf(self.threshold) else self.threshold
        fixed = self.input_scale is not None
        return {**super().settings, "int8": {"fixed": fixed, "threshold": threshold}}

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, D) -> (T, F), float32."""
        x = x.float()
        outlier = x.abs().amax(dim=0) >= self.threshold  # (D,)
        regular = x.masked_fill(outlier, 0)
        q_x, s_x = quantize_tokens(regular, self.input_scale)
        q_w = (self.codes ^ 128).view(torch.int8).view(self.out_features, -1)  # code - 128
        y = int_matmul(q_x, q_w).float() * s_x * self.scale
        if outlier.any():
            columns = q_w[:, outlier].float() * self.scale.unsqueeze(1)  # (F, few)
            y += x[:, outlier] @ columns.t()
        return y

    def product(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., F) in x's dtype."""
        rows = x.reshape(-1, self.in_features)  # (T, D)
        return _Int8Matmul.apply(rows, self).view(*x.shape[:-1], self.out_features)


class _Int8Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, layer: Int8Linear) -> Tensor:
        ctx.layer = layer
        return layer.multiply(x).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None]:
        return dy @ ctx.layer.weight.dequantize().to(dy.dtype), None


def quantize_tokens(x: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x (T, D) -> int8 (T, D), and the scale: () as given, or (T, 1), one per token."""
    if scale is None:
        scale = (x.abs().amax(dim=1, keepdim=True) / LARGEST).clamp(min=TINY)
    return (x / scale).round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


def int_matmul(a: Tensor, b: Tensor) -> Tensor:
    """a (T, D), b (F, D), int8 -> a b^T (T, F), exact: int32, or float64 where no kernel fits."""
    if a.device.type == "cpu":
        return torch._int_mm(a, b.t())
    return a.double() @ b.double().t()


def per_tensor(weight: QuantizedWeight, bias: Tensor | None, seen: InputStatistics) -> Int8Linear:
    """Static scale: set by the largest input seen in calibration."""
    return Int8Linear(weight, bias, (seen.max_abs.amax() / LARGEST).clamp(min=TINY))


def llm_int8(threshold: float = 6.0) -> MakeLayer:
    """LLM.int8(): per-token scales; columns that reach `threshold` (inf: none) in floating
    point."""
    if not threshold > 0:
        raise InputError(f"a threshold of {threshold} leaves no column in int8: the paper has 6")
    return lambda weight, bias, _: Int8Linear(weight, bias, threshold=threshold)
