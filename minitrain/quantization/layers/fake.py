"""Quantization-aware training: forward uses the rounded weight, the float one is updated.

    forward    y = x Q(W)^T          Q(W): W rounded to the format, its scales refitted
    backward   dW = dQ(W)            the straight-through estimator: round's own gradient is 0

Updates far smaller than a level accumulate in W until it changes levels. `convert_qat` then makes
the layers to deploy; they compute bit for bit the same as in training.
Papers: Bengio et al. 2013 (arXiv:1308.3432); Jacob et al. 2018 (arXiv:1712.05877).
Shapes: D width in  F width out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.model.swap import HEAD, ROUTER, exchange, swap_linears
from minitrain.quantization.formats.weight import Format
from minitrain.quantization.layers.linear import QuantLinear

KEEP = (HEAD, ROUTER)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight: Tensor, form: Format) -> Tensor:
        return form.quantize(weight).dequantize().to(weight.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def straight_through(weight: Tensor, form: Format) -> Tensor:
    """weight (F, D) rounded to `form`; its gradient passes through unchanged."""
    return _StraightThrough.apply(weight, form)


class FakeQuantLinear(nn.Linear):
    """nn.Linear over a rounded copy of its weight, a parameter shared with the original layer."""

    def __init__(self, linear: nn.Linear, form: Format):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias, self.format = linear.weight, linear.bias, form

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., F)"""
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        y = x @ straight_through(self.weight, self.format).to(x.dtype).t()
        return y if self.bias is None else y + self.bias.to(y.dtype)


def prepare_qat(
    model: nn.Module, form: Format, keep: Collection[str] = KEEP, example: Any = None
) -> nn.Module:
    """Replaces the linear layers, in place; parameters stay the same tensors, under the same names.

    `keep`, `example`: as in model/swap.py, which checks that all of them are called.
    """
    swap_linears(model, lambda linear: FakeQuantLinear(linear, form), keep, example)
    return model


def convert_qat(model: nn.Module) -> nn.Module:
    """Replaces the layers of `prepare_qat` by quantized ones that compute the same function."""
    modules = model.named_modules()
    prepared = {path: layer for path, layer in modules if isinstance(layer, FakeQuantLinear)}
    if not prepared:
        raise InputError("no layer is prepared: call prepare_qat, train, and then convert_qat")
    exchange(model, {path: (layer, _deployed(layer)) for path, layer in prepared.items()})
    return model


def _deployed(linear: FakeQuantLinear) -> QuantLinear:
    return QuantLinear(linear.format.quantize(linear.weight), linear.bias)
