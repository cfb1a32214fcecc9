import torch


class MasterWeights:
    """Masters are made group by group, and looked up by their weight."""

    def __init__(self, optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.of = {}
        for group in self.param_groups:
            for place, p in enumerate(group["params"]):
                self.of[p] = torch.nn.Parameter(p.data.to(torch.float32))
                group["params"][place] = self.of[p]
        self.weights, self.masters = list(self.of), list(self.of.values())

    def step(self):
        used = {w: m for w, m in self.of.items() if w.grad is not None}
        for weight, master in used.items():
            master.grad = weight.grad.to(torch.float32)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for weight, master in used.items():
            weight.data = master.data.to(torch.bfloat16)

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
