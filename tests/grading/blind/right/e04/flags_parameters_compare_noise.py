# right: LossScaler collects gradients and flags in lists; MasterWeights uses nn.Parameter and takes its pairs from the end; stochastic_round compares noise with the cut bits and takes the upper half as int16
import torch


class LossScaler:
    """The scale of the loss."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        gradients = [p.grad for p in parameters if p.grad is not None]
        device = gradients[0].device if gradients else "cpu"
        for gradient in gradients:
            gradient /= self.scale
        broken = [not bool(torch.isfinite(gradient).all()) for gradient in gradients]
        count = torch.tensor(float(sum(broken)), device=device)
        all_reduce(count)
        return not count.item() > 0

    def update(self, finite: bool) -> None:
        self.finite_steps = self.finite_steps + 1 if finite else 0
        if not finite:
            self.scale = self.scale * self.backoff
        elif self.finite_steps >= self.interval:
            self.scale, self.finite_steps = self.scale * self.growth, 0


class MasterWeights:
    """A fresh optimizer over BF16 weights, made to move float32 copies of them."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.masters = [
            torch.nn.Parameter(p.detach().to(torch.float32, copy=True))
            for p in self.weights
        ]
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        pairs = list(zip(self.weights, self.masters))
        for weight, master in pairs:
            given = weight.grad
            master.grad = given if given is None else given.to(torch.float32, copy=True)
        self.optimizer.step()
        while pairs:
            weight, master = pairs.pop()
            weight.data.copy_(master.data.to(weight.dtype))
            master.grad = None

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    bits = x.detach().view(torch.int32)
    below = bits >> 16  # the upper half: towards zero
    cut = bits & 0xFFFF
    chance = torch.randint(
        0, 2**16, x.shape, dtype=torch.int32, generator=generator, device=x.device
    )
    chosen = below + (chance < cut).to(torch.int32)
    return chosen.to(torch.int16).view(torch.bfloat16)
