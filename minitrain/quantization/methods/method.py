"""A quantization method: three choices, applied to the linear layers of each block.

prepare    changes a float block, not its function       AWQ, SmoothQuant
round      a weight and its input statistics -> codes              nearest, GPTQ
layer      how the weight is multiplied                                    dequantized, int8

METHODS["awq-gptq"]      Method(awq, gptq_rounding(), weight_only)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from minitrain.quantization.calibration import InputStatistics
from minitrain.quantization.formats.tiling import Shape
from minitrain.quantization.formats.weight import Format, QuantizedWeight
from minitrain.quantization.layers.int8 import MakeLayer, is_int8_rows, llm_int8, per_tensor
from minitrain.quantization.layers.linear import QuantLinear
from minitrain.quantization.methods.gptq import gptq, has_columns
from minitrain.quantization.methods.scales import Prepare, awq, smoothquant

Round = Callable[[Tensor, "InputStatistics | None", Format], QuantizedWeight]


def nearest(weight: Tensor, seen: InputStatistics | None, form: Format) -> QuantizedWeight:
    """Round to nearest (RTN), the baseline."""
    return form.quantize(weight)


def gptq_rounding(act_order: bool = False) -> Round:
    """`gptq`, for formats with fixed levels."""
    return lambda weight, seen, form: gptq(weight, seen.second_moment, form, act_order=act_order)


def weight_only(
    weight: QuantizedWeight, bias: Tensor | None, seen: InputStatistics | None
) -> QuantLinear:
    return QuantLinear(weight, bias)


@dataclass(frozen=True)
class Method:
    """A quantization method in three parts; where `calibrated` is False they get no statistics."""

    prepare: Prepare | None = None
    round: Round = nearest
    layer: MakeLayer = weight_only
    check: Callable[[Format, Shape], None] | None = None  # raises before anything is changed
    calibrated: bool = True  # False: needs no batches


RTN = Method(calibrated=False)
GPTQ = Method(round=gptq_rounding(), check=has_columns)
# Methods that need only the weights.
WEIGHT_METHODS = {
    "rtn": RTN,
    "gptq": GPTQ,
    "gptq-act-order": replace(GPTQ, round=gptq_rounding(act_order=True)),
    "awq": Method(prepare=awq),
    "awq-gptq": replace(GPTQ, prepare=awq),
}
# Activations in 8 bits too, weights in int8-row.
W8A8 = Method(check=is_int8_rows)
W8A8_METHODS = {
    "per-tensor": replace(W8A8, layer=per_tensor),
    "per-token": replace(W8A8, layer=llm_int8(math.inf), calibrated=False),
    "llm-int8": replace(W8A8, layer=llm_int8(), calibrated=False),
    "smoothquant": replace(W8A8, prepare=smoothquant(), layer=per_tensor),
}
METHODS = WEIGHT_METHODS | W8A8_METHODS
