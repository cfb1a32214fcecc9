# exercise: round_to
# differs: lists all numbers of the form that are not negative and looks for the nearest one by its
# middles; ties go to the even place of the list, which is the even mantissa. stochastic_round
# draws u in 16 bits and compares it with r, without a carry.
import torch


def numbers(form):
    """All numbers of the form from 0 to its largest, in order."""
    m = form.mantissa_bits
    found = [f * 2.0 ** (form.smallest_exponent - m) for f in range(2**m)]
    exponent = form.smallest_exponent
    while found[-1] < form.largest:
        for f in range(2**m):
            found.append((2**m + f) * 2.0 ** (exponent - m))
        exponent += 1
    return [number for number in found if number <= form.largest]


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    table = torch.tensor(numbers(form), device=x.device)
    middles = (table[1:] + table[:-1]) / 2
    size = x.abs().contiguous()
    below = torch.searchsorted(middles, size)  # a tie goes down
    above = torch.searchsorted(middles, size, right=True)  # a tie goes up
    place = torch.where(below % 2 == 0, below, above)
    rounded = torch.copysign(table[place], x)
    return torch.where(x.isnan(), x, rounded)


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    bits = x.contiguous().view(torch.int32)
    rest = bits & 0xFFFF
    low = bits - rest
    draw = torch.empty(x.shape, dtype=torch.int32, device=x.device)
    draw.random_(0, 65536, generator=generator)
    up = (draw < rest).to(torch.int32) * 65536
    return (low + up).view(torch.float32).bfloat16()
