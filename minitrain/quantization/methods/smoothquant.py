"""SmoothQuant: half of an activation outlier's size moves into the weights, where it is harmless.

    s_j = max|x_j|^alpha / max|w_j|^(1 - alpha)        x / s is read, W·s is held

Activations are quantized on the fly, with one scale for all channels of a token or even of a
tensor, so one channel 100 times as large as the others leaves those few levels. Weights have a
scale a row, and room. alpha = 1 makes all activations' channels alike, 0 all weights' columns.
Paper: Xiao et al. 2023 (arXiv:2211.10438), equation 4. Shapes: D width in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.quantization.formats.weight import Format
from minitrain.quantization.methods.junctions import junctions
from minitrain.quantization.statistics import InputStatistics

SMALLEST = 1e-5

Prepare = Callable[[nn.Module, Mapping[str, InputStatistics], Mapping[str, Format]], None]


def smoothquant(alpha: float = 0.5) -> Prepare:
    """Smooths the inputs of a block's q, k, v and of its gate and up, in place."""
    if not 0 <= alpha <= 1:
        raise InputError(f"alpha is {alpha}: it must be from 0 to 1, 0.5 where nothing is known")

    @torch.no_grad()
    def smooth(
        block: nn.Module,
        statistics: Mapping[str, InputStatistics],
        formats: Mapping[str, Format],
    ) -> None:
        for junction in junctions(block):
            if junction.after_norm and junction.consumers.keys() <= statistics.keys():
                activations = statistics[next(iter(junction.consumers))].max_abs
                columns = [
                    linear.weight.abs().amax(dim=0) for linear in junction.consumers.values()
                ]
                weights = torch.stack(columns).amax(dim=0)  # (D,)
                s = activations.clamp(min=SMALLEST) ** alpha
                junction.rescale(s / weights.clamp(min=SMALLEST) ** (1 - alpha))

    return smooth
