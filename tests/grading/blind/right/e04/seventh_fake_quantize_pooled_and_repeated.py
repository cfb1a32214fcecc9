# exercise: fake_quantize
# differs: no padding: max_pool2d with ceil_mode finds each tile's amax, repeat_interleave spreads
# the scales over x; and AmaxHistory without a loop, by torch.where over whole columns
import torch


def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    rows, columns = x.shape
    r, c = tile or (rows, columns)
    if amax is None:
        picture = x.float().abs()[None, None]
        amax = torch.nn.functional.max_pool2d(
            picture, (r, c), stride=(r, c), ceil_mode=True
        )[0, 0]
    scales = amax / form.largest
    scales = scales.masked_fill(scales == 0, 1.0)
    over = scales.repeat_interleave(r, dim=0).repeat_interleave(c, dim=1)
    over = over[:rows, :columns]
    return round_to((x / over).float(), form).mul(over)


class AmaxHistory(torch.nn.Module):
    """Largest magnitudes of the last H steps."""

    def __init__(self, length: int, device="cpu"):
        super().__init__()
        past = torch.zeros(length, 3, device=device)  # (H, 3)
        self.register_buffer("past", past)
        self.seen = {}  # role -> largest since the last step

    def amax(self, role: int, now: torch.Tensor, record=True) -> torch.Tensor:
        if record and role in self.seen:
            self.seen[role] = torch.stack([self.seen[role], now]).max()
        elif record:
            self.seen[role] = now
        column = self.past.select(1, role)
        return column.amax() if bool(column.any()) else now

    def take_seen(self) -> torch.Tensor:
        """(3,), -1 for what did not run. Ranks then take its maximum."""
        seen = [float(self.seen.get(role, -1.0)) for role in range(3)]
        self.seen = {}
        return torch.tensor(seen)

    def roll(self, seen: torch.Tensor) -> None:
        seen = seen.to(self.past)
        moved = torch.cat([seen[None], self.past[:-1]])
        self.past.copy_(torch.where(seen >= 0, moved, self.past))
