# exercise: stochastic_round
# differs: no carry: both neighbours are made, and a uniform float below r / 2^16 picks the upper
# one; and MasterWeights in one loop over pairs with torch.nn.Parameter masters, weights written
# through .data
import torch


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    bits = x.detach().contiguous().view(torch.int32)
    rest = torch.bitwise_and(bits, 2**16 - 1)
    near = bits - rest  # toward zero
    far = near + 2**16
    chance = torch.rand(x.shape, generator=generator, device=x.device)
    up = chance < rest.float() / 2**16
    return torch.where(up, far, near).view(torch.float32).bfloat16()


class MasterWeights:
    """A fresh optimizer over BF16 weights, made to move float32 copies of them."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        groups = self.param_groups
        self.weights = [p for group in groups for p in group["params"]]
        self.masters = []  # a float32 parameter for each weight
        self.masters += [
            torch.nn.Parameter(w.data.to(torch.float32, copy=True))
            for w in self.weights
        ]
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    def step(self) -> None:
        pairs = list(zip(self.weights, self.masters))
        for weight, master in pairs:
            own = weight.grad
            master.grad = own if own is None else own.detach().to(torch.float32)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for weight, master in pairs:
            weight.data.copy_(master.data.to(weight.dtype))

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
