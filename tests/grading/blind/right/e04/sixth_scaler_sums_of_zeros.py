# exercise: LossScaler
# differs: the note is a sum of gradients times zero (nan where one was inf or nan, else 0); all
# tensors divided together by one foreach call; update by an early growth test and a conditional
# expression. Also AmaxHistory, whose roll builds a new buffer.
import torch


class LossScaler:
    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        grads = [p.grad for p in parameters if p.grad is not None]
        if grads:
            torch._foreach_div_(grads, self.scale)
        device = grads[0].device if grads else "cpu"
        found = torch.zeros((), device=device)
        for grad in grads:
            # inf * 0 and nan * 0 are nan, and nan stays nan in every sum
            found += (grad * 0).sum().to(found)
        all_reduce(found)
        return found.item() == 0

    def update(self, finite: bool) -> None:
        self.finite_steps = self.finite_steps + 1 if finite else 0
        full = self.finite_steps == self.interval
        if full:
            self.finite_steps = 0
        self.scale *= self.backoff if not finite else self.growth if full else 1


class AmaxHistory(torch.nn.Module):
    def __init__(self, length: int, device="cpu"):
        super().__init__()
        past = torch.zeros(length, 3, device=device)
        self.register_buffer("past", past)
        self.seen = {}

    def amax(self, role: int, now: torch.Tensor, record=True) -> torch.Tensor:
        past = self.past.amax(dim=0)[role]
        if record and role in self.seen:
            self.seen[role] = torch.stack([self.seen[role], now]).amax()
        elif record:
            self.seen[role] = now.detach().clone()
        return past if past != 0 else now

    def take_seen(self) -> torch.Tensor:
        seen = [float(self.seen.get(role, -1.0)) for role in range(3)]
        self.seen = {}
        return torch.tensor(seen)

    def roll(self, seen: torch.Tensor) -> None:
        seen = seen.to(self.past)
        moved = torch.cat([seen[None], self.past[:-1]])
        self.past = torch.where(seen >= 0, moved, self.past)
