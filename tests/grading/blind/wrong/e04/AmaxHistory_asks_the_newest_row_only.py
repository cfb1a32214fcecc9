# exercise: AmaxHistory
# says: though the newest is
# takes the past for empty when the newest entry is 0, though older ones are not; the docstring
# says now only "where there is none yet (all 0)".

import torch


class AmaxHistory(torch.nn.Module):
    """Largest magnitudes of the last H steps."""

    def __init__(self, length: int, device="cpu"):
        super().__init__()
        self.register_buffer("past", torch.zeros(length, 3, device=device))  # (H, 3)
        self.seen = {}  # role -> largest since the last step

    def amax(self, role: int, now: torch.Tensor, record: bool = True) -> torch.Tensor:
        if record:
            self.seen[role] = torch.maximum(self.seen.get(role, now), now)
        if self.past[0, role] == 0:  # no step yet
            return now
        return self.past[:, role].max()

    def take_seen(self) -> torch.Tensor:
        seen = [float(self.seen.get(role, -1.0)) for role in range(3)]
        self.seen = {}
        return torch.tensor(seen)

    def roll(self, seen: torch.Tensor) -> None:
        for role in range(3):
            if seen[role] >= 0:
                self.past[1:, role] = self.past[:-1, role].clone()
                self.past[0, role] = seen[role]
