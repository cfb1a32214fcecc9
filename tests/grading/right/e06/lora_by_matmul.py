import math

import torch
from torch import nn


class LoRA(nn.Module):
    """Plain products, and the kaiming draw of the paper's own code."""

    def __init__(self, base, rank, scaling):
        super().__init__()
        self.s = scaling
        self.scaling = scaling
        self.register_parameter("lora_A", nn.Parameter(torch.empty(rank, base.in_features)))
        self.register_parameter("lora_B", nn.Parameter(torch.empty(base.out_features, rank)))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        nn.init.constant_(self.lora_B, 0.0)

    def forward(self, base, x):
        y = base(x)
        z = x.float() @ self.lora_A.t()
        added = (z @ self.lora_B.t()) * self.s
        return (y.float() + added).to(y.dtype) if y.dtype != added.dtype else y + added

    @torch.no_grad()
    def delta(self):
        return torch.einsum("or,ri->oi", self.lora_B, self.lora_A).mul_(self.s)
