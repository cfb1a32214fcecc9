# exercise: LoRA
# says: elements differ
# delta() is B·A without the scaling s; only forward multiplies by it

import torch
import torch.nn.functional as F


class LoRA(torch.nn.Module):
    def __init__(self, base, rank, scaling):
        super().__init__()
        self.scaling = scaling
        self.lora_A = torch.nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_B = torch.nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, base, x):
        y = base(x)
        inside = F.linear(x.float(), self.lora_A) * self.scaling
        return y + F.linear(inside, self.lora_B).to(y.dtype)

    def delta(self):
        return (self.lora_B @ self.lora_A).detach()
