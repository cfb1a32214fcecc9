import torch


class AmaxHistory(torch.nn.Module):
    """All columns at once."""

    def __init__(self, length, device="cpu"):
        super().__init__()
        self.register_buffer("past", torch.zeros(length, 3, device=device))
        self.seen = {}

    def amax(self, role, now, record=True):
        known = self.past[:, role].amax()
        if record:
            self.seen[role] = max(now, self.seen[role]) if role in self.seen else now
        return torch.where(known == 0, now, known)

    def take_seen(self):
        seen = torch.tensor([float(self.seen.get(role, -1.0)) for role in range(3)])
        self.seen = {}
        return seen

    def roll(self, seen):
        moved = self.past.roll(1, dims=0)
        moved[0] = seen
        self.past[:, seen >= 0] = moved[:, seen >= 0]
