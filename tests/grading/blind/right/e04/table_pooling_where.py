# right: round_to looks up a table of all numbers of the form; fake_quantize takes tiles' maxima by max_pool2d and spreads scales by repeat_interleave, without padding; AmaxHistory rolls all columns at once with cat and where
import math

import torch


def numbers_of(form, device):
    """All numbers of `form` from 0 on, in order, and one beyond; their index is even
    where their last bit is 0."""
    count, low = 2**form.mantissa_bits, form.smallest_exponent
    high = math.frexp(form.largest)[1] - 1
    values = [k * 2.0 ** (low - form.mantissa_bits) for k in range(count)]
    for e in range(low, high + 1):
        values += [(count + k) * 2.0 ** (e - form.mantissa_bits) for k in range(count)]
    values.append(2.0 ** (high + 1))
    return torch.tensor(values, dtype=torch.float64, device=device)


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    numbers = numbers_of(form, x.device)
    middles = (numbers[1:] + numbers[:-1]) / 2
    size = x.abs().clamp(max=form.largest).double().contiguous()
    down = torch.bucketize(size, middles)  # a tie goes down
    up = torch.bucketize(size, middles, right=True)  # a tie goes up
    index = torch.where(down % 2 == 0, down, up)  # apart only in a tie
    rounded = torch.copysign(numbers.float()[index], x)
    return torch.where(x.isnan(), x, rounded)


def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    rows, columns = x.shape
    r, c = tile or (rows, columns)
    if amax is None:
        sizes = x.abs()[None, None].contiguous()
        amax = torch.nn.functional.max_pool2d(sizes, (r, c), (r, c), ceil_mode=True)[0, 0]
    scale = torch.where(amax > 0, amax / form.largest, torch.ones_like(amax))
    scale = scale.repeat_interleave(r, 0)[:rows].repeat_interleave(c, 1)[:, :columns]
    return round_to(x / scale, form) * scale


class AmaxHistory(torch.nn.Module):
    """Largest magnitudes of the last H steps."""

    def __init__(self, length: int, device="cpu"):
        super().__init__()
        self.register_buffer("past", torch.zeros(length, 3, device=device))  # (H, 3)
        self.seen = {}  # role -> largest since the last step

    def amax(self, role: int, now: torch.Tensor, record: bool = True) -> torch.Tensor:
        if record:
            before = [self.seen[role]] if role in self.seen else []
            self.seen[role] = torch.stack([*before, now.detach()]).max()
        largest = self.past[:, role].amax()
        return torch.where(largest > 0, largest, now)

    def take_seen(self) -> torch.Tensor:
        """(3,), -1 for what did not run. Ranks then take its maximum."""
        seen = [float(self.seen.get(role, -1.0)) for role in range(3)]
        self.seen = {}
        return torch.tensor(seen)

    def roll(self, seen: torch.Tensor) -> None:
        newest = seen.to(self.past)
        moved = torch.cat([newest[None], self.past[:-1]])
        self.past.copy_(torch.where(newest >= 0, moved, self.past))
