"""A method of quantization: three choices that any block's linear layers go through.

prepare    changes a block that is still whole, and not its function       AWQ, SmoothQuant
round      a weight and what its layer read -> codes                       nearest, GPTQ
layer      how the weight is multiplied                                    dequantized, int8

METHODS["gptq"]      Method(leave, gptq_rounding, weight_only)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from minitrain.quantization.calibration import InputStatistics
from minitrain.quantization.formats.tiling import Shape
from minitrain.quantization.formats.weight import Format, QuantizedWeight
from minitrain.quantization.layers.int8 import (
    MakeLayer,
    is_int8_rows,
    llm_int8,
    per_tensor,
    per_token,
)
from minitrain.quantization.layers.linear import QuantLinear
from minitrain.quantization.methods.gptq import gptq, has_columns
from minitrain.quantization.methods.scales import Prepare, awq, smoothquant

Round = Callable[[Tensor, "InputStatistics | None", Format], QuantizedWeight]


def leave(
    block: nn.Module, statistics: Mapping[str, InputStatistics], formats: Mapping[str, Format]
) -> None:
    """The block stays as it is."""


def nearest(weight: Tensor, seen: InputStatistics | None, form: Format) -> QuantizedWeight:
    """Round to nearest (RTN): what all others are measured against."""
    return form.quantize(weight)


def any_format(form: Format, shape: Shape) -> None:
    """No objection."""


def gptq_rounding(block: int = 128, damping: float = 0.01, act_order: bool = False) -> Round:
    """`gptq` with these settings; its formats are those with fixed levels."""
    return lambda weight, seen, form: gptq(
        weight, seen.second_moment, form, block, damping, act_order
    )


def weight_only(
    weight: QuantizedWeight, bias: Tensor | None, seen: InputStatistics | None
) -> QuantLinear:
    return QuantLinear(weight, bias)


@dataclass(frozen=True)
class Method:
    """A quantization method in three parts; where `calibrated` is False they get no statistics."""

    prepare: Prepare = leave
    round: Round = nearest
    layer: MakeLayer = weight_only
    check: Callable[[Format, Shape], None] = any_format  # raises before anything is changed
    calibrated: bool = True  # whether it asks for texts

    @property
    def prepares(self) -> bool:
        return self.prepare is not leave


RTN = Method(calibrated=False)
GPTQ = Method(round=gptq_rounding(), check=has_columns)
# By the weights alone.
WEIGHT_METHODS = {
    "rtn": RTN,
    "gptq": GPTQ,
    "gptq-act-order": replace(GPTQ, round=gptq_rounding(act_order=True)),
    "awq": Method(prepare=awq),
    "awq-gptq": replace(GPTQ, prepare=awq),
}
# Activations in 8 bits too, weights in int8-row.
W8A8_METHODS = {
    "per-tensor": Method(layer=per_tensor, check=is_int8_rows),
    "per-token": Method(layer=per_token, check=is_int8_rows, calibrated=False),
    "llm-int8": Method(layer=llm_int8(), check=is_int8_rows, calibrated=False),
    "smoothquant": Method(prepare=smoothquant(), layer=per_tensor, check=is_int8_rows),
}
METHODS = WEIGHT_METHODS | W8A8_METHODS
