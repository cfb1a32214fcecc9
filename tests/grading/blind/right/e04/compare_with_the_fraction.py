# right: stochastic_round takes both neighbours and picks by torch.rand < fraction, instead of adding noise to the bits; MasterWeights goes over pairs, makes copies explicitly and rounds with `.to`.
import torch


class MasterWeights:
    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.masters = [
            torch.nn.Parameter(weight.detach().to(torch.float32, copy=True))
            for weight in self.weights
        ]
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        pairs = list(zip(self.weights, self.masters))
        for weight, master in pairs:
            master.grad = None
            if weight.grad is not None:
                master.grad = weight.grad.to(torch.float32, copy=True)
        self.optimizer.step()
        for weight, master in pairs:
            master.grad = None
            weight.copy_(master.to(weight.dtype))

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    bits = x.detach().view(torch.int32)
    toward_zero = bits & -(2**16)
    away = toward_zero + 2**16
    fraction = (bits & 0xFFFF).to(torch.float32) / 2**16  # exact, 0 to 1 - 2^-16
    chance = torch.rand(
        x.shape, dtype=torch.float32, device=x.device, generator=generator
    )
    chosen = torch.where(chance < fraction, away, toward_zero).view(torch.float32)
    return torch.where(x.detach().isfinite(), chosen, x.detach()).to(torch.bfloat16)
