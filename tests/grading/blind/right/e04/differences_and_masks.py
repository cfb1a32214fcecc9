# right: LossScaler finds inf and nan by g - g != 0, in a tensor of shape (1,); AmaxHistory rolls all three columns at once with a mask, and has no branch on values.
import torch


class LossScaler:
    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        gradients = [p.grad for p in parameters if p.grad is not None]
        device = gradients[0].device if gradients else "cpu"
        bad = torch.zeros(1, device=device)
        for gradient in gradients:
            gradient.div_(self.scale)
            bad += (gradient - gradient).ne(0).any()  # inf - inf and nan - nan are nan
        all_reduce(bad)
        return bad.item() == 0

    def update(self, finite: bool) -> None:
        if not finite:
            self.scale, self.finite_steps = self.scale * self.backoff, 0
            return
        self.finite_steps = (self.finite_steps + 1) % self.interval
        if self.finite_steps == 0:
            self.scale = self.scale * self.growth


class AmaxHistory(torch.nn.Module):
    def __init__(self, length: int, device="cpu"):
        super().__init__()
        self.register_buffer("past", torch.zeros(length, 3, device=device))  # (H, 3)
        self.seen = {}  # role -> largest since the last step

    def amax(self, role: int, now: torch.Tensor, record: bool = True) -> torch.Tensor:
        largest = self.past.amax(dim=0)[role]
        if record:
            before = self.seen.get(role)
            known = now.detach().clone()
            self.seen[role] = known if before is None else torch.maximum(before, known)
        return torch.where(largest == 0, now, largest)

    def take_seen(self) -> torch.Tensor:
        """(3,), -1 for what did not run. Ranks then take its maximum."""
        seen = [float(self.seen.get(role, -1.0)) for role in range(3)]
        self.seen = {}
        return torch.tensor(seen)

    def roll(self, seen: torch.Tensor) -> None:
        newest = seen.to(self.past).reshape(1, 3)
        moved = torch.cat([newest, self.past[:-1]])  # (H, 3)
        self.past.copy_(torch.where(newest == -1, self.past, moved))
