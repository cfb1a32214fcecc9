"""Linear layers with 8- and 4-bit weights against bfloat16: seconds and bytes.

One token, where memory is the bottleneck; several, where it no longer is; a prompt's, which unpack
the weight once; and the path through a dequantized weight, which only saves memory. Each kernel's
name includes the ratio that this machine's roofline allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from minitrain.bench.case import OURS, PEER, TORCH, Case, once
from minitrain.measure.clock import Comparison, compare, copy_bandwidth, matmul_peak
from minitrain.quantization.formats.names import named
from minitrain.quantization.layers.linear import QuantLinear
from minitrain.quantization.layers.packed_kernels import kernel_for, roofline_seconds
from minitrain.words import plural

WIDTH = 4096  # 32 MB in bfloat16: more than most caches
PACKED = ("int8-row", "int4-g64")
LINEAR = f"bfloat16 linear of {TORCH}"
KERNEL_REASON = (
    "unpacking takes instructions for every weight and token, and hides behind memory only while a "
    "weight is read for a few tokens; after that bfloat16's matrix units are ahead"
)
UNPACKED_REASON = (
    "each weight is unpacked into bfloat16 once a call, at the same cost for any number of tokens "
    "(a pass for 8 bits, five for 4), before the same matmul: it saves memory alone"
)
WRITTEN_REASON = (
    "the whole weight is written to memory before it is multiplied: this layer saves memory alone"
)


def cases(
    repeats: int = 21, width: int = WIDTH, tokens: Sequence[int] = (1, 16, 512)
) -> list[Case]:
    rows = []
    for name in PACKED:
        held = named(name).quantize(torch.ones(256, 256))
        for count in tokens:
            ratio = roofline_ratio(held.bits_per_weight, count)
            title = f"{name} kernel, {width} x {width}, {plural(count, 'token')}"
            measure = partial(seconds, name, packed, width, count, repeats)
            reason = KERNEL_REASON if count <= kernel_for(held).few else UNPACKED_REASON
            rows.append(Case(f"{title} (roofline {ratio:.2f})", LINEAR, measure, reason))
        measure = partial(nbytes, name, width)
        rows.append(Case(f"{name} kernel, {width} x {width}", LINEAR, measure, "", "bytes"))
    measure = partial(seconds, "nf4", dequantized, width, 1, min(repeats, 5))
    return [*rows, Case(f"nf4 dequantized, {width} x {width}", LINEAR, measure, WRITTEN_REASON)]


def roofline_ratio(bits: float, tokens: int, weights: int = WIDTH**2) -> float:
    """Roofline seconds at `bits` per weight over those at bfloat16's 16."""
    bandwidth, peak = copy_bandwidth(), matmul_peak(torch.bfloat16)
    few, sixteen = (
        roofline_seconds(size * weights / 8, weights, tokens, bandwidth, peak)
        for size in (bits, 16)
    )
    return few / sixteen


def packed(layer: QuantLinear) -> nn.Module:
    return kernel_for(layer.weight)(layer)


def both(name: str, make: Callable[[QuantLinear], nn.Module], width: int) -> dict[str, nn.Module]:
    """Our layer and bfloat16's, from one weight."""
    linear = nn.Linear(width, width, bias=False, dtype=torch.bfloat16)
    held = named(name).quantize(linear.weight)
    return {OURS: make(QuantLinear(held)), PEER: linear}


def dequantized(layer: QuantLinear) -> nn.Module:
    return layer


@torch.no_grad()
def seconds(
    name: str, make: Callable[[QuantLinear], nn.Module], width: int, tokens: int, repeats: int
) -> Comparison:
    layers, x = both(name, make, width), torch.randn(tokens, width).bfloat16()
    error = (layers[OURS](x) - layers[PEER](x)).norm() / layers[PEER](x).norm()
    assert error < 0.2, f"{name} is off by {error:.0%}"
    return compare({who: partial(layer, x) for who, layer in layers.items()}, repeats, warmup=3)


def nbytes(name: str, width: int) -> Comparison:
    layers = both(name, packed, width)
    return once(
        {
            who: sum(tensor.nbytes for tensor in layer.state_dict().values())
            for who, layer in layers.items()
        }
    )
