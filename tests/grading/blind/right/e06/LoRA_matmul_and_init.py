# right: init.normal_ on empty parameters, @ with transposes, the scaling at the end, delta under no_grad
import torch
from torch import nn


class LoRA(nn.Module):
    def __init__(self, base, rank, scaling):
        super().__init__()
        self.scaling = scaling
        wide, tall = base.in_features, base.out_features
        self.lora_A = nn.Parameter(torch.empty(rank, wide, dtype=torch.float32))
        self.lora_B = nn.Parameter(torch.empty(tall, rank, dtype=torch.float32))
        nn.init.normal_(self.lora_A, std=wide**-0.5)
        nn.init.zeros_(self.lora_B)

    def forward(self, base, x):
        small = x.to(torch.float32) @ self.lora_A.mT
        extra = (small @ self.lora_B.mT).mul(self.scaling)
        answer = base(x)
        return answer + extra.to(answer.dtype)

    @torch.no_grad()
    def delta(self):
        return torch.matmul(self.lora_B * self.scaling, self.lora_A)
