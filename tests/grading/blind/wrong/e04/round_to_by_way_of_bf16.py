# exercise: round_to
# says: rounded twice
# x is rounded to BF16 first and then again, so a number just beside the middle of two becomes a
# tie and may go the wrong way; docstring: "The nearest number of `form` ... right bit for bit".

import torch


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    x = x.clamp(-form.largest, form.largest).to(torch.bfloat16)  # has bits to spare
    power = (x.view(torch.int16) & 0x7F80).view(torch.bfloat16).float()
    step = power.clamp(min=2.0**form.smallest_exponent) * 2.0**-form.mantissa_bits
    return (x.float() / step).round() * step
