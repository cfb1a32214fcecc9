"""Junctions: places where a scale can move from activations into weights without changing the
model.

    producer -> x (T, D) -> consumers        y = W x = (W·s) (x/s)

The producer is divided by s (a norm's weight, or the rows of a linear layer), the consumers'
columns are multiplied by it. AWQ, SmoothQuant and planted outliers differ in s alone.

    attention_norm -> q, k, v      mlp_norm -> gate, up      v -> o      up -> down

What is between v and o, and between up and down, is linear in v and in up; with grouped heads v has
fewer channels than o reads, and that one is left out, as in AWQ. Shapes: D channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.model.transformer import Transformer

PLACES = {
    "attention_norm": ("attention.q", "attention.k", "attention.v"),
    "attention.v": ("attention.o",),
    "mlp_norm": ("mlp.gate", "mlp.up"),
    "mlp.up": ("mlp.down",),
}


@dataclass(frozen=True)
class Junction:
    producer: nn.Module  # its weight's first dimension is the channels
    consumers: dict[str, nn.Linear]  # by their path in the block

    @property
    def after_norm(self) -> bool:
        """A norm has a vector, and no matrix that would be rounded too."""
        return self.producer.weight.dim() == 1

    @torch.no_grad()
    def rescale(self, s: Tensor) -> None:
        """s (D,) > 0: channels leave the producer divided by it; y is what it was."""
        weight = self.producer.weight
        weight.copy_(weight / (s if self.after_norm else rearrange(s, "d -> d 1")))
        if getattr(self.producer, "bias", None) is not None:
            self.producer.bias.copy_(self.producer.bias / s)
        for consumer in self.consumers.values():
            consumer.weight.copy_(consumer.weight * s)


def junctions(block: nn.Module) -> Iterator[Junction]:
    """Those of a block of the Transformer whose weights are float, and whose producer has as many
    channels as the consumers read."""
    for place, names in PLACES.items():
        producer = block.get_submodule(place)
        consumers = {name: block.get_submodule(name) for name in names}
        weights = [getattr(layer, "weight", None) for layer in (producer, *consumers.values())]
        if not all(isinstance(weight, Tensor) for weight in weights):
            continue
        if all(len(weights[0]) == linear.in_features for linear in consumers.values()):
            yield Junction(producer, consumers)


def check_float(model: Transformer) -> None:
    """InputError where a block has experts, or layers in few bits: neither can be changed so."""
    if model.config.experts:
        raise InputError(
            f"a mixture of {model.config.experts} experts has tensors of all experts where a dense "
            "model has linear layers: take a dense model"
        )
    names = [name for consumers in PLACES.values() for name in consumers]
    for index, block in enumerate(model.blocks):
        for name in names:
            if not isinstance(block.get_submodule(name), nn.Linear):
                kind = type(block.get_submodule(name)).__name__
                raise InputError(
                    f"blocks.{index}.{name} is a {kind}, whose weight is no float matrix any more: "
                    "change the float model first, and quantize it then"
                )
