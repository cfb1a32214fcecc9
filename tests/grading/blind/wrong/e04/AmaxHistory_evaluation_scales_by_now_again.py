# exercise: AmaxHistory
# says: the magnitude to scale by in evaluation (record=False)
# with record=False it returns now instead of the past; the text says "Evaluation (record=False)
# scales in the same way, and notes nothing".

import torch


class AmaxHistory(torch.nn.Module):
    """Largest magnitudes of the last H steps."""

    def __init__(self, length: int, device="cpu"):
        super().__init__()
        self.register_buffer("past", torch.zeros(length, 3, device=device))  # (H, 3)
        self.seen = {}  # role -> largest since the last step

    def amax(self, role: int, now: torch.Tensor, record: bool = True) -> torch.Tensor:
        if not record:
            return now
        self.seen[role] = torch.maximum(self.seen.get(role, now), now)
        largest = self.past[:, role].max()
        return largest if largest > 0 else now

    def take_seen(self) -> torch.Tensor:
        seen = [float(self.seen.get(role, -1.0)) for role in range(3)]
        self.seen = {}
        return torch.tensor(seen)

    def roll(self, seen: torch.Tensor) -> None:
        for role in range(3):
            if seen[role] >= 0:
                self.past[1:, role] = self.past[:-1, role].clone()
                self.past[0, role] = seen[role]
