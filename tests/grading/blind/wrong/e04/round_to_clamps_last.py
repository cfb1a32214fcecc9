# exercise: round_to
# says: inf has become nan
# It clamps at the end instead of first, so inf is divided by an infinite step and becomes nan;
# docstring: "1. Clamp to ±form.largest".

import torch


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32)
    power = power.clamp(min=2.0**form.smallest_exponent)
    step = power * 2.0**-form.mantissa_bits
    return ((x / step).round() * step).clamp(-form.largest, form.largest)
