# right: A by kaiming_uniform_ as PEFT does it (uniform within 1/sqrt(I)), F.linear, the scale on the way
import math

import torch
import torch.nn.functional as F


class LoRA(torch.nn.Module):
    def __init__(self, base, rank: int, scaling: float):
        super().__init__()
        self.scaling = scaling
        self.lora_A = torch.nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = torch.nn.Parameter(torch.empty(base.out_features, rank))
        torch.nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        torch.nn.init.zeros_(self.lora_B)

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        answer = base(x)
        middle = F.linear(x.to(torch.float32), self.lora_A) * self.scaling
        return answer.add(F.linear(middle, self.lora_B).type_as(answer))

    def delta(self) -> torch.Tensor:
        with torch.no_grad():
            return torch.einsum("or,ri->oi", self.lora_B, self.lora_A).mul(self.scaling)
