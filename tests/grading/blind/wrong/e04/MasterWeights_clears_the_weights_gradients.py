# exercise: MasterWeights
# says: step() has changed a weight's own gradient
# step ends by clearing the weights' own gradients, too ("The weights' own gradients stay as
# they are").

import torch


class MasterWeights:
    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.masters = []
        for w in self.weights:
            self.masters.append(torch.nn.Parameter(w.detach().clone().float()))
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        for weight, master in zip(self.weights, self.masters):
            master.grad = None if weight.grad is None else weight.grad.to(torch.float32)
        self.optimizer.step()
        for weight, master in zip(self.weights, self.masters):
            weight.copy_(master.to(weight.dtype))
            master.grad = None
        self.zero_grad()

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
