# exercise: MasterWeights
# says: go through the masters and weights of all groups
# step() pairs the weights with the parameters of the first group only, so weights of other
# groups never move ("Gradients to the masters, one step, weights from masters").

import torch


class MasterWeights:
    """A fresh optimizer over BF16 weights, made to move float32 copies of them."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.masters = []  # a float32 parameter for each weight
        for p in self.weights:
            self.masters.append(p.detach().float().requires_grad_())
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        pairs = list(zip(self.weights, self.param_groups[0]["params"]))
        for weight, master in pairs:
            master.grad = None if weight.grad is None else weight.grad.float()
        self.optimizer.step()
        for weight, master in pairs:
            weight.copy_(master)
            master.grad = None

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
