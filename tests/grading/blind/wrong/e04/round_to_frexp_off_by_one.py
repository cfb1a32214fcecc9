# exercise: round_to
# says: the steps are twice too wide: 2^e must not be above |x|
# frexp's mantissa lies in [0.5, 1), so its exponent is one more than e: the step is twice as
# large as it should be.

import torch


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    x = x.clamp(-form.largest, form.largest)
    _, e = torch.frexp(x)
    e = e.clamp(min=form.smallest_exponent)
    step = torch.ldexp(torch.ones_like(x), e - form.mantissa_bits)
    return torch.round(x / step) * step
