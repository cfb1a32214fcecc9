# exercise: round_to
# says: expected
# everything below 2^smallest_exponent becomes 0; the text says that below it the steps shrink
# no further (subnormal), so half of it, or its 7/8, are numbers of the form.

import torch


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    x = x.clamp(-form.largest, form.largest)
    least = 2.0**form.smallest_exponent
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32).clamp(min=least)
    step = power * 2.0**-form.mantissa_bits
    return ((x / step).round() * step).masked_fill(x.abs() < least, 0.0)
