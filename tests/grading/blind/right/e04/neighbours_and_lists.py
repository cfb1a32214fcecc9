# right: both neighbours are made and one is chosen by a uniform number; masters are stepped pairwise; histories are rolled as lists
import torch


class MasterWeights:
    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.masters = [
            torch.empty_like(p, dtype=torch.float32).copy_(p.detach()).requires_grad_()
            for p in (w.detach() for w in self.weights)
        ]
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        pairs = list(zip(self.weights, self.masters))
        for weight, master in pairs:
            if weight.grad is not None:
                master.grad = weight.grad.float()
        self.optimizer.step()
        for weight, master in pairs:
            master.grad = None
            weight.copy_(master.to(weight.dtype))

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    flat = x.reshape(-1).view(torch.int32)
    toward_zero = flat & ~0xFFFF
    away = toward_zero + 0x10000
    share = (flat - toward_zero).float() / 65536  # of the way, exact
    draw = torch.rand(flat.shape, generator=generator)
    chosen = torch.where(draw < share, away, toward_zero)
    return chosen.view(torch.float32).bfloat16().reshape(x.shape)


class AmaxHistory(torch.nn.Module):
    def __init__(self, length: int, device="cpu"):
        super().__init__()
        self.register_buffer("past", torch.zeros(length, 3, device=device))
        self.seen = {}

    def amax(self, role: int, now: torch.Tensor, record: bool = True) -> torch.Tensor:
        if record:
            known = [self.seen[role]] if role in self.seen else []
            self.seen[role] = torch.stack([*known, now]).max()
        most = self.past.max(dim=0).values[role]
        return now if most == 0 else most

    def take_seen(self) -> torch.Tensor:
        seen = [float(self.seen.get(role, -1.0)) for role in range(3)]
        self.seen = {}
        return torch.tensor(seen)

    def roll(self, seen: torch.Tensor) -> None:
        for role, newest in enumerate(seen.tolist()):
            if newest != -1:
                column = [newest, *self.past[:, role].tolist()][:-1]
                self.past[:, role] = torch.tensor(column)
