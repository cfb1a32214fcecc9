# exercise: MasterWeights
# says: the optimizer on bfloat16 numbers
# Only the first parameter group gets masters, the others are still moved in BF16; "a float32
# parameter for each weight", "Keep a float32 copy ... of each weight".

import torch


class MasterWeights:
    """A fresh optimizer over BF16 weights, made to move float32 copies of them."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.masters = []  # a float32 parameter for each weight
        for weight in self.param_groups[0]["params"]:
            self.masters.append(weight.detach().float().requires_grad_())
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        for master, weight in zip(self.masters, self.weights):
            master.grad = None if weight.grad is None else weight.grad.float()
        self.optimizer.step()
        for master, weight in zip(self.masters, self.weights):
            weight.copy_(master)
            master.grad = None

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
