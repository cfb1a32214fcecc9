"""One wrapper that carries any adapter over any layer, and leaves the layer's own code alone.

    Adapted(base_layer, adapter)        y = adapter(base_layer, x)

The layer is called, never opened: it may be quantized, fused, or cut over ranks. An adapter decides
what is computed before, beside and after it. Three states: adapted; disabled (the bare layer, bit
for bit); merged (one dense layer that computes the sum, where the adapter has such a form).
Paper of the idea: Houlsby et al., arXiv 1902.00751; as a wrapper: PEFT's `base_layer`.
Shapes: I, O features in and out.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from minitrain.errors import InputError


@runtime_checkable
class LinearLike(Protocol):
    """nn.Linear, and whatever computes the like: (..., I) -> (..., O).

    A `weight` that is not a float matrix (O, I) has `dequantize() -> (O, I)`, as `QuantLinear`'s,
    which DoRA, PiSSA and merging ask for; the others never look at it.
    """

    in_features: int
    out_features: int

    def forward(self, x: Tensor) -> Tensor: ...


class Adapter(nn.Module):
    """What is trained. `peft_names`: its parameters and how PEFT's files call them."""

    peft_names: dict[str, str] = {}  # noqa: RUF012

    def forward(self, base: nn.Module, x: Tensor, *rest: Any) -> Tensor:
        raise AssertionError(f"{type(self).__name__} must say what it computes")

    def merged(self, base: nn.Module) -> nn.Module:
        """A plain layer that computes the same as `base` with this adapter; InputError if none."""
        raise InputError(
            f"{type(self).__name__} computes what no single layer can, so it cannot be merged: "
            "keep it beside the model, or use lora, dora, pissa, ia3, bitfit or norm"
        )


class Adapted(nn.Module):
    """`base_layer` under `adapter`; both are its children, and `merged_layer` beside them is none.

    base_layer's parameters are frozen: an adapter is trained alone.
    """

    def __init__(self, base_layer: nn.Module, adapter: Adapter) -> None:
        super().__init__()
        self.base_layer, self.adapter = base_layer.requires_grad_(False), adapter
        self.adapter.train(base_layer.training)
        self.enabled = True
        self.merged_layer: nn.Module | None = None

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        if not self.enabled:
            return self.base_layer(x, *rest)
        if self.merged_layer is not None:
            return self.merged_layer(x, *rest)
        return self.adapter(self.base_layer, x, *rest)

    def extra_repr(self) -> str:
        return "disabled" if not self.enabled else "merged" if self.merged_layer else ""


def adapted_layers(model: nn.Module) -> dict[str, Adapted]:
    """Path in the model -> wrapper, of all that carry an adapter."""
    return {name: m for name, m in model.named_modules() if isinstance(m, Adapted)}


def dense_weight(layer: nn.Module) -> Tensor:
    """The matrix (O, I) that a linear layer multiplies by, in floats and without gradient."""
    weight = getattr(layer, "weight", None)
    if isinstance(weight, Tensor) and weight.is_floating_point() and weight.ndim == 2:
        return weight.detach()
    if not isinstance(weight, Tensor) and callable(getattr(weight, "dequantize", None)):
        return weight.dequantize().detach()
    raise InputError(
        f"{type(layer).__name__} does not say what its matrix is: give its weight dequantize() -> "
        f"({layer.out_features}, {layer.in_features}), or use a method that only adds, such as lora"
    )


def place_of(layer: nn.Module) -> dict[str, Any]:
    """Where an adapter of this layer lives: on its device, in its dtype but at least float32.

    In bfloat16 an update of less than 1/256 of a weight is lost; an adapter is small, and can
    afford not to.
    """
    tensors = [*layer.parameters(), *layer.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
    return {"device": device, "dtype": torch.promote_types(dtype, torch.float32)}


def dense_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A frozen nn.Linear around these tensors."""
    outs, ins = weight.shape
    linear = nn.Linear(ins, outs, bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


def bias_of(layer: nn.Module) -> Tensor | None:
    bias = getattr(layer, "bias", None)
    return bias.detach() if isinstance(bias, Tensor) else None
