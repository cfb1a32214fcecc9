"""A quantized model as a dense one again: plain matrices of what its layers stand for.

It computes the same, takes a float model's bytes, and can be saved and opened as any float model:
what an adapter over few bits is merged into (rounding the sum to few bits anew would change it).
"""

from __future__ import annotations

import torch
from torch import nn

from minitrain.model.experts.grouped import put_together
from minitrain.model.transformer import Transformer
from minitrain.quantization.layers.linear import QuantLinear


@torch.no_grad()
def dequantize_model(model: Transformer) -> Transformer:
    """In place, in the embedding's dtype; a model without quantized layers stays as it is."""
    found = {name: m for name, m in model.named_modules() if isinstance(m, QuantLinear)}
    for name, layer in found.items():
        model.set_submodule(name, dense_layer(layer))
    return put_together(model).to(model.embed.weight.dtype)


def dense_layer(layer: QuantLinear) -> nn.Linear:
    linear = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
    linear.weight, linear.bias = nn.Parameter(layer.weight.dequantize()), layer.bias
    return linear
