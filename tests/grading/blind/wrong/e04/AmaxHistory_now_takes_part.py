# exercise: AmaxHistory
# says: the current one is not part of the past yet
# `now` takes part in the scale although there is a past: max(past, now) instead of the past
# alone.

import torch


class AmaxHistory(torch.nn.Module):
    def __init__(self, length: int, device="cpu"):
        super().__init__()
        self.register_buffer("past", torch.zeros(length, 3, device=device))
        self.seen = {}

    def amax(self, role: int, now: torch.Tensor, record: bool = True) -> torch.Tensor:
        if record:
            before = self.seen.get(role)
            self.seen[role] = now if before is None else torch.maximum(before, now)
        return torch.maximum(self.past[:, role].max(), now)

    def take_seen(self) -> torch.Tensor:
        seen = [float(self.seen.get(role, -1.0)) for role in range(3)]
        self.seen = {}
        return torch.tensor(seen)

    def roll(self, seen: torch.Tensor) -> None:
        for role in range(3):
            if seen[role] >= 0:
                column = self.past[:, role].clone()
                self.past[1:, role] = column[:-1]
                self.past[0, role] = seen[role]
