# exercise: MasterWeights
# says: one for a frozen weight too
# a frozen weight (requires_grad False) gets no master, so all later masters slip by one place
# in the groups (other learning rate), and the last BF16 weight stays in the optimizer;
# "masters: a float32 parameter for each weight".

import torch


class MasterWeights:
    """A fresh optimizer over BF16 weights, made to move float32 copies of them."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.trained = [p for p in self.weights if p.requires_grad]
        self.masters = [p.detach().float().requires_grad_() for p in self.trained]
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        for weight, master in zip(self.trained, self.masters):
            master.grad = None if weight.grad is None else weight.grad.float()
        self.optimizer.step()
        for weight, master in zip(self.trained, self.masters):
            weight.copy_(master)
            master.grad = None

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
