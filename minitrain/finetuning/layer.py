"""The one wrapper that puts any adapter over any layer, and finding layers by name.

    Adapted(base_layer, adapter)        y = adapter(base_layer, x)

The layer is only called, its weight never read: it may be quantized, fused, or sharded over ranks.
An adapter decides what is computed before, beside and after it. Three states: adapted; disabled
(the bare layer, bit for bit); merged (one dense layer that computes the sum, where the adapter has
such a form). The names of the wrapper's children follow PEFT (`base_layer`). Shapes: I, O features
in and out.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.errors import InputError, unknown_name
from minitrain.model.hub.load import HUB_PARTS
from minitrain.model.transformer import Transformer

ALL_LINEAR = ("q", "k", "v", "o", "gate", "up", "down")
EVERY_LINEAR = "all-linear"  # PEFT's name for all linear layers but the head, of any model
OTHER_NAMES = {part: (hub.rsplit(".", 1)[-1],) for part, hub in HUB_PARTS.items()}  # q: q_proj
OTHER_NAMES |= {theirs[0]: (ours,) for ours, theirs in OTHER_NAMES.items()}


class Adapter(nn.Module):
    """The trained part of an adapted layer; its forward takes the base layer and then its input.

    `peft_names`: its parameters' names in PEFT's files.
    """

    peft_names: dict[str, str] = {}  # noqa: RUF012

    def merged(self, base: nn.Module) -> nn.Module:
        """A plain layer that computes the same as `base` with this adapter; InputError if none."""
        raise InputError(
            f"{type(self).__name__} computes what no single layer can, so it cannot be merged: "
            "keep it beside the model, or use lora, dora, pissa, ia3, bitfit or norm"
        )


class Adapted(nn.Module):
    """`base_layer` under `adapter`; both are child modules, and `merged_layer` while merged.

    base_layer's parameters are frozen; only the adapter is trained. Any other attribute, such as
    weight, bias or in_features, is looked up on the base layer.
    """

    def __init__(self, base_layer: nn.Module, adapter: Adapter) -> None:
        super().__init__()
        self.base_layer, self.adapter = base_layer.requires_grad_(False), adapter
        self.adapter.train(base_layer.training)
        self.enabled = True
        self.merged_layer: nn.Module | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "base_layer" not in self.__dict__.get("_modules", ()):  # while it is being unpickled
                raise
            return getattr(self.base_layer, name)

    def forward(self, *args: Any, **named: Any) -> Any:
        """Called like the base layer; an adapter reads the first argument, positional or by
        keyword."""
        if not self.enabled:
            return self.base_layer(*args, **named)
        if self.merged_layer is not None:
            return self.merged_layer(*args, **named)
        if not args:
            args = (named.pop(next(iter(named))),)
        return self.adapter(self.base_layer, *args, **named)


def adapted_layers(model: nn.Module) -> dict[str, Adapted]:
    """Path in the model -> wrapper, for every layer with an adapter."""
    return {name: m for name, m in model.named_modules() if isinstance(m, Adapted)}


def features(layer: nn.Module) -> tuple[int, int] | None:
    """(O, I) of a linear layer, also of GPT-2's Conv1D, whose weight is (I, O); None for other
    layers.

    A linear layer has in_features and out_features, and computes (..., I) -> (..., O). One whose
    `weight` is not a float matrix (O, I) has `weight.dequantize() -> (O, I)`, as `QuantLinear`
    does; only DoRA, PiSSA and merging call it.
    """
    if is_conv1d(layer):
        return layer.nf, layer.nx
    is_linear = hasattr(layer, "in_features") and hasattr(layer, "out_features")
    return (layer.out_features, layer.in_features) if is_linear else None


def is_conv1d(layer: nn.Module) -> bool:
    """True for the Conv1D of transformers, which this package does not import."""
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf") and hasattr(layer, "nx")


# ---- layers by name ----


def find_layers(model: nn.Module, targets: tuple[str, ...]) -> list[tuple[str, nn.Module]]:
    """Path and layer of every layer whose path is or ends with a target, in our names or the hub's.

    Each target must match a layer; only in ALL_LINEAR, the default, may some be missing, as in a
    mixture of experts, whose matrices are the target `experts`. In a model other than `Transformer`
    the default means what "all-linear" does: every linear layer but the head.
    """
    if targets == (EVERY_LINEAR,) or (targets == ALL_LINEAR and not isinstance(model, Transformer)):
        return _every_linear(model)
    named = [(path, m) for path, m in model.named_modules(remove_duplicate=False) if path]
    found: dict[nn.Module, str] = {}  # a layer may have several paths
    for target in targets:
        hits = [(path, module) for path, module in named if is_target(path, target)]
        if not hits and targets != ALL_LINEAR:
            raise unknown_name("layer", target, {path.rsplit(".", 1)[-1] for path, _ in named})
        for path, module in hits:
            found.setdefault(module, path)
    if not found:
        raise InputError(
            f"this {type(model).__name__} has no layers called {', '.join(targets)}: name its own "
            "with targets=(…)"
        )
    return [(found[module], module) for module in model.modules() if module in found]


def is_target(path: str, target: str) -> bool:
    ends = tuple(f".{name}" for name in (target, *OTHER_NAMES.get(target, ())))
    return f".{path}".endswith(ends)


def _every_linear(model: nn.Module) -> list[tuple[str, nn.Module]]:
    get_head = getattr(model, "get_output_embeddings", lambda: getattr(model, "head", None))
    head = get_head()
    found = [
        (path, module)
        for path, module in model.named_modules()
        if path and module is not head and features(module) is not None
    ]
    if not found:
        raise InputError(
            f"this {type(model).__name__} has no linear layers inside: put a bare one into "
            "nn.Sequential(layer)"
        )
    return found


# ---- a layer's weight, for adapters that read it, and for merging ----


def dense_weight(layer: nn.Module) -> Tensor:
    """The matrix (O, I) that a linear layer multiplies by, in floats and without gradient."""
    weight = getattr(layer, "weight", None)
    if isinstance(layer, nn.Linear) and type(layer).forward is not nn.Linear.forward:
        raise InputError(
            f"{type(layer).__name__} has a forward of its own, which may do more than multiply by "
            "its weight: use a method that only adds, such as lora, and do not merge it"
        )
    if isinstance(weight, Tensor) and weight.is_floating_point() and weight.ndim == 2:
        return weight.detach().T if is_conv1d(layer) else weight.detach()
    if not isinstance(weight, Tensor) and callable(getattr(weight, "dequantize", None)):
        return weight.dequantize().detach()
    raise InputError(
        f"{type(layer).__name__} does not say what its matrix is: give its weight dequantize() -> "
        f"{features(layer)}, or use a method that only adds, such as lora"
    )


def place_of(layer: nn.Module) -> dict[str, Any]:
    """Device and dtype for an adapter of this layer: the layer's own, but at least float32.

    In bfloat16 an update of less than 1/256 of a weight is lost; an adapter is small enough for
    float32.
    """
    tensors = [*layer.parameters(), *layer.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
    return {"device": device, "dtype": torch.promote_types(dtype, torch.float32)}


def dense_like(base: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """A frozen nn.Linear around weight (O, I) and bias; a Conv1D for a Conv1D, so that the saved
    model loads elsewhere."""
    if is_conv1d(base):
        return with_weight(base, weight.T.contiguous(), bias)
    outs, ins = weight.shape
    linear = nn.Linear(ins, outs, bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


def with_weight(base: nn.Module, weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    """A frozen copy of a layer around these tensors, without copying its own."""
    new = {id(base.weight): nn.Parameter(weight, requires_grad=False)}
    if bias is not None:
        new[id(base.bias)] = nn.Parameter(bias, requires_grad=False)
    return copy.deepcopy(base, new).requires_grad_(False)


def bias_of(layer: nn.Module) -> Tensor | None:
    bias = getattr(layer, "bias", None)
    return bias.detach() if isinstance(bias, Tensor) else None
