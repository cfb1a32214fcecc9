# right: lists of gradients and foreach calls; the rounding is a choice between two neighbours, made as 16-bit integers
import torch


class LossScaler:
    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        gradients = [p.grad for p in parameters if p.grad is not None]
        bad = sum(int((~g.isfinite()).sum()) for g in gradients)
        message = torch.tensor([float(bad)])
        if gradients:
            torch._foreach_div_(gradients, self.scale)
        all_reduce(message)
        return message.item() == 0

    def update(self, finite: bool) -> None:
        self.finite_steps = self.finite_steps + 1 if finite else 0
        factor = 1.0 if finite else self.backoff
        if self.finite_steps == self.interval:
            factor, self.finite_steps = self.growth, 0
        self.scale = self.scale * factor


class MasterWeights:
    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.masters = []
        for p in self.weights:
            copy = p.detach().to(torch.float32, copy=True)
            self.masters.append(torch.nn.Parameter(copy))
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        for i, weight in enumerate(self.weights):
            g = weight.grad
            self.masters[i].grad = g if g is None else g.to(torch.float32, copy=True)
        self.optimizer.step()
        if self.weights:
            torch._foreach_copy_(self.weights, self.masters)
        for master in self.masters:
            master.grad = None

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    bits = x.view(torch.int32)
    rest = bits & 0xFFFF  # how far up, in 65,536ths
    coin = torch.randint(0, 65536, x.shape, dtype=torch.int32, generator=generator)
    upper = (bits >> 16) + (coin < rest).to(torch.int32)
    return upper.to(torch.int16).view(torch.bfloat16)
