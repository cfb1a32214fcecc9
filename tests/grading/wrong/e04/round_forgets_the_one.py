# exercise: round_to
# says: twice too wide

import torch


def round_to(x, form):
    x = x.clamp(-form.largest, form.largest)
    exponent = (torch.frexp(x).exponent).clamp(min=form.smallest_exponent)
    step = torch.ldexp(torch.ones_like(x), exponent - form.mantissa_bits)
    return (x / step).round() * step
