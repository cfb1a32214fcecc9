"""One token through 8- and 4-bit weights, against float32 and torchao's weight-only layers.

torchao's come from `quantize_` on an nn.Linear: int8 by row, int4 in groups of 64. Both round the
same weight to nearest, with float32 activations, as in a model that was not cast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor, nn

from minitrain.bench.case import OURS, PEER, TORCH, Case, peer_module
from minitrain.bench.quantization import KERNEL_REASON, packed
from minitrain.measure.clock import Comparison, compare
from minitrain.quantization.formats.names import named
from minitrain.quantization.layers.linear import QuantLinear

Make = Callable[[nn.Linear, str], nn.Module]

WIDTH = 4096
APART = {"int8-row": 0.02, "int4-g64": 0.2}  # relative rounding error


def cases(repeats: int = 15, width: int = WIDTH) -> list[Case]:
    title = f"torchao {torchao().__version__}"
    rows = []
    for name in APART:
        text = f"{name} kernel, {width} x {width}, 1 float32 token"
        for peer, make in ((f"float32 linear of {TORCH}", as_it_is), (title, by_torchao)):
            measure = partial(seconds, name, make, width, repeats)
            rows.append(Case(f"{text}, beside {peer.split()[0]}", peer, measure, KERNEL_REASON))
    return rows


def torchao() -> ModuleType:
    return peer_module("weight_only", "torchao")


def as_it_is(linear: nn.Linear, name: str) -> nn.Module:
    return linear


def by_torchao(linear: nn.Linear, name: str) -> nn.Module:
    """torchao's layer of the same weight; modifies `linear`."""
    peer = import_module("torchao.quantization")
    if name == "int8-row":
        config = peer.Int8WeightOnlyConfig()
    else:
        config = peer.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=peer.PerGroup(64))
    model = nn.Sequential(linear)  # quantize_ replaces submodules
    peer.quantize_(model, config)
    return model[0]


@torch.no_grad()
def seconds(name: str, make: Make, width: int, repeats: int) -> Comparison:
    linear, x = nn.Linear(width, width, bias=False), torch.randn(1, width)
    expected = linear(x)
    layers = {OURS: packed(QuantLinear(named(name).quantize(linear.weight)))}
    layers[PEER] = make(linear, name)
    for who, layer in layers.items():
        check_near(layer(x), expected, APART[name], f"{name} of {who}")
    return compare({who: partial(layer, x) for who, layer in layers.items()}, repeats, warmup=3)


def check_near(found: Tensor, expected: Tensor, most: float, what: str) -> None:
    error = (found - expected).norm() / expected.norm()
    assert error < most, f"{what} is off by {error:.1%}"
