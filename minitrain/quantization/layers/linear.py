"""A linear layer that stores its weight in few bits, and multiplies by the dequantized one.

    forward    y = x Ŵ^T + b        Ŵ (F, D) is made from its bytes, in x's dtype, and dropped
    backward   dx = dy Ŵ            made again: nothing of its size is saved for backward

The weight has no gradient: earlier layers train, or an adapter beside it (QLoRA). Memory falls by
16/bits over bfloat16; time does not, since all of Ŵ goes through memory: only packed kernels
(packed_kernels.py) are faster.
Paper: Dettmers et al. 2023 (arXiv:2305.14314), equation 5. Lab: e07.
Shapes: D width in  F width out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.quantization.formats.weight import QuantizedWeight


class QuantLinear(nn.Module):
    """y = x Ŵ^T + bias. Its buffers are the weight's bytes, named as the format names them."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None = None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.format = weight.format
        self.parts = tuple(weight.tensors)
        for name, tensor in weight.tensors.items():
            self.register_buffer(name, tensor)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    @property
    def weight(self) -> QuantizedWeight:
        """The stored weight; `.dequantize()` gives its float values."""
        tensors = {name: self.get_buffer(name) for name in self.parts}
        return QuantizedWeight(self.format, (self.out_features, self.in_features), tensors)

    @property
    def settings(self) -> dict[str, object]:
        """The layer's settings as a folder stores them, beside its tensors."""
        return {"format": self.format.name}

    def _save_to_state_dict(self, destination, prefix: str, keep_vars: bool) -> None:
        """Adds the settings as metadata: codes of all formats have the same name."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination._metadata[prefix[:-1]] |= {"settings": self.settings}

    def _load_from_state_dict(self, state_dict, prefix: str, local_metadata, *rest) -> None:
        found = local_metadata.get("settings", self.settings)
        if found != self.settings:
            raise InputError(
                f"the state of {prefix[:-1] or 'the layer'} is of {found}, and here it has "
                f"{self.settings}: quantize the model in the same way before its state is loaded"
            )
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., F), in x's dtype, or in autocast's where that is on."""
        if not x.is_floating_point():
            raise InputError(f"the input is {x.dtype}, and Ŵ would be cut to it: give floats")
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        y = self.product(x)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def product(self, x: Tensor) -> Tensor:
        """x (..., D) -> x Ŵ^T (..., F)"""
        return _DequantizedMatmul.apply(x, self)

    def _apply(self, fn, recurse: bool = True) -> QuantLinear:
        """Moves to a device. `.half()` and similar calls convert only the bias, not codes and
        scales."""
        held = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, tensor in held.items():
            self.register_buffer(name, tensor.to(self.get_buffer(name).device))
        return self

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, {self.format.name}, {self.weight.bits_per_weight:.3g} bits a weight"


class _DequantizedMatmul(torch.autograd.Function):
    """x (..., D) -> x Ŵ^T (..., F); linear in x and in dy, so it can be differentiated twice."""

    @staticmethod
    def forward(ctx, x: Tensor, layer: QuantLinear) -> Tensor:
        ctx.layer = layer
        return x @ layer.weight.dequantize().to(x.dtype).t()

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None]:
        return dy @ ctx.layer.weight.dequantize().to(dy.dtype), None
