"""AWQ: columns that meet large activations are scaled up before rounding, and so lose less.

    s = mean|x|^ratio, over the root of its largest and smallest      Ŵ = Q(W·s) / s

A column of a group that is scaled up, alone, has its relative error divided by s, as long as it
does not become the group's largest number. The ratio is the best of a grid over [0, 1), by the
layers' own output error; ratio 0 leaves every bit as it was, so calibration never loses by it.
Paper: Lin et al. 2024 (arXiv:2306.00978), section 3.2. Shapes: D width in  F width out.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from minitrain.quantization.formats.weight import Format
from minitrain.quantization.methods.junctions import Junction, junctions
from minitrain.quantization.statistics import InputStatistics

STEPS = 20
SMALLEST = 1e-4  # of a mean magnitude: a dead input does not scale the others away


def awq(
    block: nn.Module, statistics: Mapping[str, InputStatistics], formats: Mapping[str, Format]
) -> None:
    """Rescales every junction of a block, all of whose consumers are quantized."""
    for junction in junctions(block):
        if junction.consumers.keys() <= statistics.keys():
            seen = statistics[next(iter(junction.consumers))]
            ratio, _ = best_ratio(junction, seen, formats)
            junction.rescale(scale_of(seen.mean_abs, ratio))


def scale_of(mean_abs: Tensor, ratio: float) -> Tensor:
    """s (D,) of mean |x| (D,); exactly 1 for ratio 0."""
    s = mean_abs.clamp(min=SMALLEST) ** ratio
    return s / (s.max() * s.min()).sqrt()


@torch.no_grad()
def best_ratio(
    junction: Junction, seen: InputStatistics, formats: Mapping[str, Format], steps: int = STEPS
) -> tuple[float, list[float]]:
    """The ratio of the smallest output error (the first of equals), and every ratio's error."""
    errors = []
    for step in range(steps):
        s = scale_of(seen.mean_abs, step / steps)
        errors.append(
            sum(
                seen.output_error(
                    formats[name].quantize(linear.weight * s).dequantize() / s - linear.weight
                )
                for name, linear in junction.consumers.items()
            )
        )
    return errors.index(min(errors)) / steps, errors
