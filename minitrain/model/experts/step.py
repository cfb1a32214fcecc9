"""The parts of a training step that concern mixtures of experts.

    set_step(model, tokens)     all tokens of the step, over microbatches and ranks
    forward, backward, …        the caller's loss is its share: its summed loss / all targets
    update_biases(model)        once, from the counts of all ranks

The load is counted in backward: once a microbatch, never twice when activations are recomputed,
never in an evaluation. The layer itself: moe.py. Lab: e02d_expert_parallel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Sum = Callable[[Tensor], Tensor]  # adds up a tensor over some ranks


def alone(counts: Tensor) -> Tensor:
    """The sum over ranks where there is one."""
    return counts


@dataclass(frozen=True)
class Statistics:
    """Routing statistics of a layer on this rank. They add up over microbatches, and over ranks."""

    load: Tensor  # (E,) choices an expert got, dropped ones among them
    dropped: Tensor  # () choices that found their expert full
    losses: Tensor  # (3,) shares of sequence balance, batch balance and z, before their weights

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(
            self.load + other.load, self.dropped + other.dropped, self.losses + other.losses
        )


class Mixture(nn.Module):
    """`last` is what the latest forward routed, `seen` the sum over the step's backwards so far."""

    router: nn.Module  # with its `bias_rate`, `bias_steps` and `update_bias`

    def __init__(self) -> None:
        super().__init__()
        self.step_tokens: Tensor | int | None = None
        self.loss_scale = 1.0
        self.last: Statistics | None = None
        self.seen: Statistics | None = None

    def note(self, statistics: Statistics) -> None:
        self.seen = statistics if self.seen is None else self.seen + statistics


def mixtures(model: nn.Module) -> list[Mixture]:
    return [module for module in model.modules() if isinstance(module, Mixture)]


def set_step(model: nn.Module, tokens: Tensor | int, scale: float = 1.0) -> None:
    """Begins a step: `tokens` go through the model in it, padding too, on all ranks together.

    `scale` is what the caller's loss is multiplied by: by N where gradients are averaged over N
    ranks, by the scale of float16. Without a call, a microbatch is a step, on one rank.
    """
    for layer in mixtures(model):
        layer.step_tokens, layer.loss_scale, layer.seen = tokens, scale, None


@torch.no_grad()
def update_biases(model: nn.Module, sum_over_ranks: Sum = alone) -> None:
    """Once a step, after its last backward. One all-reduce for all layers, in their order.

    `sum_over_ranks` adds up, in place, over the ranks that hold different tokens.
    """
    layers = [layer for layer in mixtures(model) if layer.router.bias_rate]
    if not layers:
        return
    zeros = torch.zeros_like(layers[0].router.bias_steps)
    loads = torch.stack([zeros if layer.seen is None else layer.seen.load for layer in layers])
    sum_over_ranks(loads)  # (L, E)
    for layer, load in zip(layers, loads):
        layer.router.update_bias(load)
