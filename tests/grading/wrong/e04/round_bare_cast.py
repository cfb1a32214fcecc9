# exercise: round_to
# says: E2M1

import torch


def round_to(x, form):
    kind = torch.float8_e4m3fn if form.mantissa_bits == 3 else torch.float8_e5m2
    return x.clamp(-form.largest, form.largest).to(kind).float()
