"""AWQ, SmoothQuant and planted outliers: moves scales from activations into weights, without
changing the model's function.

    producer -> x (T, D) -> consumers        y = W x = (W·s) (x/s)

The producer is divided by s (a norm's weight, or the rows of a linear layer), the consumers'
columns are multiplied by it. The places, called junctions:

    attention_norm -> q, k, v      mlp_norm -> gate, up      v -> o      up -> down

The path from v to o, and from up to down, is linear in v and up; with grouped heads v has fewer
channels than o reads, and v -> o is skipped, as in AWQ. The three methods differ only in s:

    AWQ            s = mean|x|^ratio, over the root of its largest and smallest      Ŵ = Q(W·s) / s
    SmoothQuant    s_j = max|x_j|^alpha / max|w_j|^(1 - alpha)                       W8A8
    outliers       s = 1/factor for a few channels after each norm                   to test others

AWQ: columns with large activations are scaled up before rounding. Scaling up one column of a group
divides its relative error by s, as long as it does not set the group's maximum. The ratio is the
best of a grid over [0, 1), by the layers' own output error; ratio 0 changes nothing, so the result
is never worse on the calibration data.
SmoothQuant: activations are quantized on the fly, with one scale for all channels of a token or
even of a tensor, so one channel 100 times as large as the others leaves those few levels. Weights
have a scale per row, and can absorb it. alpha = 1 equalizes the activations' channels, 0 the
weights' columns.
Outliers: from some 6.7B parameters on, a few channels of the residual stream are 20 to 100 times
the others, in every layer and for every token; here they are planted in a small model, to make its
activations as hard to quantize.
Papers: Lin et al. 2024 (arXiv:2306.00978), section 3.2; Xiao et al. 2023 (arXiv:2211.10438),
equation 4; Dettmers et al. 2022 (arXiv:2208.07339), section 4. Shapes: D channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.model.transformer import Transformer
from minitrain.quantization.calibration import InputStatistics
from minitrain.quantization.formats.weight import Format

PLACES = {
    "attention_norm": ("attention.q", "attention.k", "attention.v"),
    "attention.v": ("attention.o",),
    "mlp_norm": ("mlp.gate", "mlp.up"),
    "mlp.up": ("mlp.down",),
}
STEPS = 20  # of AWQ's grid
SMALLEST_MEAN = 1e-4  # a dead input must not dominate the scale
SMALLEST_MAX = 1e-5

Prepare = Callable[[nn.Module, Mapping[str, InputStatistics], Mapping[str, Format]], None]


@dataclass(frozen=True)
class Junction:
    producer: nn.Module  # its weight's first dim is the channels
    consumers: dict[str, nn.Linear]  # by their path in the block

    @property
    def after_norm(self) -> bool:
        """True if the producer is a norm, whose weight is a vector that is not quantized."""
        return self.producer.weight.dim() == 1

    @torch.no_grad()
    def rescale(self, s: Tensor) -> None:
        """s (D,) > 0: divides the producer's channels by it; y is unchanged."""
        weight = self.producer.weight
        weight.copy_(weight / (s if self.after_norm else rearrange(s, "d -> d 1")))
        if getattr(self.producer, "bias", None) is not None:
            self.producer.bias.copy_(self.producer.bias / s)
        for consumer in self.consumers.values():
            consumer.weight.copy_(consumer.weight * s)


def junctions(block: nn.Module) -> Iterator[Junction]:
    """A Transformer block's junctions with float weights, and as many producer channels as the
    consumers read."""
    for place, names in PLACES.items():
        producer = block.get_submodule(place)
        consumers = {name: block.get_submodule(name) for name in names}
        weights = [getattr(layer, "weight", None) for layer in (producer, *consumers.values())]
        if not all(isinstance(weight, Tensor) for weight in weights):
            continue
        if all(len(weights[0]) == linear.in_features for linear in consumers.values()):
            yield Junction(producer, consumers)


def _calibrated(
    block: nn.Module, statistics: Mapping[str, InputStatistics]
) -> Iterator[tuple[Junction, InputStatistics]]:
    """The junctions whose consumers are all quantized, with their input statistics."""
    for junction in junctions(block):
        if junction.consumers.keys() <= statistics.keys():
            yield junction, statistics[next(iter(junction.consumers))]


def awq(
    block: nn.Module, statistics: Mapping[str, InputStatistics], formats: Mapping[str, Format]
) -> None:
    for junction, seen in _calibrated(block, statistics):
        ratio, _ = best_ratio(junction, seen, formats)
        junction.rescale(scale_of(seen.mean_abs, ratio))


def scale_of(mean_abs: Tensor, ratio: float) -> Tensor:
    """AWQ's s (D,) of mean |x| (D,); exactly 1 for ratio 0."""
    s = mean_abs.clamp(min=SMALLEST_MEAN) ** ratio
    return s / (s.max() * s.min()).sqrt()


@torch.no_grad()
def best_ratio(
    junction: Junction, seen: InputStatistics, formats: Mapping[str, Format]
) -> tuple[float, list[float]]:
    """The ratio with the smallest output error (the first of equals), and the error of each
    ratio."""
    errors = []
    for step in range(STEPS):
        s, error = scale_of(seen.mean_abs, step / STEPS), 0.0
        for name, linear in junction.consumers.items():
            rounded = formats[name].quantize(linear.weight * s).dequantize() / s
            error += seen.output_error(rounded - linear.weight)
        errors.append(error)
    return errors.index(min(errors)) / STEPS, errors


def smoothquant(alpha: float = 0.5) -> Prepare:
    """Smooths the inputs of a block's q, k, v and of gate, up, in place."""
    if not 0 <= alpha <= 1:
        raise InputError(f"alpha is {alpha}: it must be from 0 to 1, 0.5 where nothing is known")

    @torch.no_grad()
    def smooth(
        block: nn.Module, statistics: Mapping[str, InputStatistics], _: Mapping[str, Format]
    ) -> None:
        for junction, seen in _calibrated(block, statistics):
            if junction.after_norm:
                linears = junction.consumers.values()
                columns = torch.stack([linear.weight.abs().amax(dim=0) for linear in linears])
                s = seen.max_abs.clamp(min=SMALLEST_MAX) ** alpha  # (D,)
                junction.rescale(s / columns.amax(dim=0).clamp(min=SMALLEST_MAX) ** (1 - alpha))

    return smooth


@torch.no_grad()
def plant_outliers(
    model: Transformer, factor: float, channels: int = 4, seed: int = 0
) -> Transformer:
    """In place: multiplies `channels` channels, drawn by `seed`, of each block's two norms by
    `factor`."""
    check_float(model)
    width = model.config.hidden_size
    if not factor > 0 or not 1 <= channels <= width:
        raise InputError(
            f"{channels} channels times {factor}: give a factor above 0 and 1 to {width} channels"
        )
    generator = torch.Generator().manual_seed(seed)
    for block in model.blocks:
        for junction in junctions(block):
            if junction.after_norm:
                s = torch.ones(width)
                s[torch.randperm(width, generator=generator)[:channels]] = 1 / factor
                junction.rescale(s.to(junction.producer.weight))
    return model


def check_float(model: Transformer) -> None:
    """InputError where a block has experts or quantized layers, which cannot be rescaled."""
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
