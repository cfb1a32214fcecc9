# exercise: round_to
# says: clamp the exponent

import torch


def round_to(x, form):
    x = x.clamp(-form.largest, form.largest)
    exponent = torch.frexp(x).exponent - 1
    step = torch.ldexp(torch.ones_like(x), exponent - form.mantissa_bits)
    return (x / step).round() * step
