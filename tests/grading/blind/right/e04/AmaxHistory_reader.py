# a reader's answer to `AmaxHistory`, in which others made the mistakes of wrong/e04/AmaxHistory_reader.diff

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
        if not self.past[:, role].any():
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
