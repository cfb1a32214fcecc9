# exercise: round_to
# says: what a cast to
# takes every form with 3 bits for E4M3 and every one with 2 bits for E5M2, whatever its
# smallest_exponent (Form(3, -2, 30.0) has other subnormal steps); step 2 says e is at least
# form.smallest_exponent.

import torch


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    x = x.clamp(-form.largest, form.largest)
    ready = {3: torch.float8_e4m3fn, 2: torch.float8_e5m2}
    if form.mantissa_bits in ready:
        return x.to(ready[form.mantissa_bits]).to(torch.float32)
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32)
    step = power.clamp(min=2.0**form.smallest_exponent) * 2.0**-form.mantissa_bits
    return (x / step).round() * step
