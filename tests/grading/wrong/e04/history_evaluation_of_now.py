# exercise: AmaxHistory
# says: evaluation scales by the past

import torch


class AmaxHistory(torch.nn.Module):
    def __init__(self, length, device="cpu"):
        super().__init__()
        self.register_buffer("past", torch.zeros(length, 3, device=device))
        self.seen = {}

    def amax(self, role, now, record=True):
        if not record:
            return now
        self.seen[role] = torch.maximum(self.seen.get(role, now), now)
        past = self.past[:, role].max()
        return past if past > 0 else now

    def take_seen(self):
        seen = [float(self.seen.get(role, -1.0)) for role in range(3)]
        self.seen = {}
        return torch.tensor(seen)

    def roll(self, seen):
        for role in range(3):
            if seen[role] >= 0:
                self.past[1:, role] = self.past[:-1, role].clone()
                self.past[0, role] = seen[role]
