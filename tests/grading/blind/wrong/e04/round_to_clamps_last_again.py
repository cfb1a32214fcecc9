# exercise: round_to
# says: numbers above its largest
# clamps after rounding, so inf becomes inf / inf = nan; step 1 says "Clamp to plus or minus
# form.largest" first, and only nan is nan.

import torch


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32)
    step = power.clamp(min=2.0**form.smallest_exponent) * 2.0**-form.mantissa_bits
    return ((x / step).round() * step).clamp(-form.largest, form.largest)
