"""Sensitivity of each layer: the increase in the model's loss when it alone is quantized.

    Δ[l, f] = loss with only layer l quantized, in format f, minus the loss of the float model

The costs are roughly additive, so bits are allocated by their sum: one format per layer, with the
least sum of Δ and the bytes within a budget (a knapsack with one choice per layer). It is solved
exactly: layer by layer, only sums of bytes and losses that no other beats in both are kept. Cost:
layers x formats evaluations; then front x formats a layer.
Papers: Dong et al. 2019, HAWQ (arXiv:1905.03696), allocates by curvature; the sum of measured
losses is as in Hubara et al. 2021 (arXiv:2006.10518), section 3.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from minitrain.data.loader import Batch
from minitrain.errors import InputError
from minitrain.model.experts.grouped import take_apart
from minitrain.model.transformer import Transformer
from minitrain.quantization.formats.weight import Format
from minitrain.quantization.layers.linear import QuantLinear
from minitrain.quantization.model import Progress, layer_names
from minitrain.training.loop import evaluate
from minitrain.words import bytes_text


class Cost(NamedTuple):
    """The cost of one layer in one format."""

    nbytes: int
    loss: float  # nats per token above the float model's


Costs = Mapping[str, Mapping[Format, Cost]]  # by the layer's path
Point = tuple[int, float, tuple[Format, ...]]  # bytes, loss, the layers' formats so far


@torch.no_grad()
def sensitivities(
    model: Transformer,
    formats: Sequence[Format],
    batches: Sequence[Batch],
    progress: Progress = lambda name: None,
) -> dict[str, dict[Format, Cost]]:
    """Every layer alone in every format, rounded to nearest; the model is restored, except that a
    mixture's experts stay split."""
    whole = evaluate(take_apart(model), batches)
    found: dict[str, dict[Format, Cost]] = {}
    for name in layer_names(model):
        linear, found[name] = model.get_submodule(name), {}
        for form in formats:
            held = form.quantize(linear.weight)
            model.set_submodule(name, QuantLinear(held, linear.bias))
            found[name][form] = Cost(held.nbytes, evaluate(model, batches) - whole)
        model.set_submodule(name, linear)
        progress(name)
    return found


def deal_bits(costs: Costs, budget_bytes: int) -> dict[str, Format]:
    """A format for each layer, by path, with the least sum of losses within the budget.

    InputError where even the smallest formats take more.
    """
    front: list[Point] = [(0, 0.0, ())]
    for choices in costs.values():
        sums = (
            (nbytes + cost.nbytes, loss + cost.loss, (*chosen, form))
            for nbytes, loss, chosen in front
            for form, cost in choices.items()
        )
        front = _unbeaten(sums)
    fitting = [point for point in front if point[0] <= budget_bytes]
    if not fitting:
        raise InputError(
            f"a budget of {bytes_text(budget_bytes)} is too small: the smallest formats take "
            f"{bytes_text(front[0][0])}; allow that, or offer a format of fewer bits"
        )
    return dict(zip(costs, fitting[-1][2]))


def _unbeaten(points: Iterable[Point]) -> list[Point]:
    """The Pareto front: points with less loss than all smaller ones; bytes ascend, losses fall."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: point[:2]):
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept
