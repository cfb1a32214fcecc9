# exercise: round_to
# differs: writes down all numbers of the form and looks each |x| up among the midpoints; in a tie
# the even place wins
import itertools

import torch


def numbers_of(form) -> list:
    """All of the form from 0 up; the even places have an even mantissa."""
    count = 2**form.mantissa_bits
    found = [k / count * 2.0**form.smallest_exponent for k in range(count)]
    for exponent in itertools.count(form.smallest_exponent):
        for k in range(count):
            value = (1 + k / count) * 2.0**exponent
            if value > form.largest:
                return found
            found.append(value)


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    numbers = numbers_of(form)
    middles = [(a + b) / 2 for a, b in itertools.pairwise(numbers)]
    table = torch.tensor(numbers, device=x.device)
    middles = torch.tensor(middles, device=x.device)
    size = x.detach().abs().contiguous()
    lower = torch.bucketize(size, middles)  # a tie: the number below
    upper = torch.bucketize(size, middles, right=True)  # a tie: above
    place = torch.where(lower % 2 == 0, lower, upper)
    nearest = torch.copysign(table[place], x)
    return torch.where(x.isnan(), x, nearest)
