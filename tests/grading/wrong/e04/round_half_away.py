# exercise: round_to
# says: ties go to the even neighbour

import torch


def round_to(x, form):
    x = x.clamp(-form.largest, form.largest)
    exponent = (torch.frexp(x).exponent - 1).clamp(min=form.smallest_exponent)
    step = torch.ldexp(torch.ones_like(x), exponent - form.mantissa_bits)
    return x.sign() * (x.abs() / step + 0.5).floor() * step
