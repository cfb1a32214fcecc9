# exercise: AmaxHistory
# says: whatever the others have seen
# takes `now` only while the past of all roles is empty, so a role that runs for the first time
# later is scaled by 0 ("the largest of the role's past, or `now` where there is none yet (all
# 0)").

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
        if not self.past.any():  # the first step
            return now
        return self.past[:, role].max()

    def take_seen(self) -> torch.Tensor:
        """(3,), -1 for what did not run. Ranks then take its maximum."""
        seen = [float(self.seen.get(role, -1.0)) for role in range(3)]
        self.seen = {}
        return torch.tensor(seen)

    def roll(self, seen: torch.Tensor) -> None:
        for role in range(3):
            if seen[role] >= 0:
                self.past[1:, role] = self.past[:-1, role].clone()
                self.past[0, role] = seen[role]
