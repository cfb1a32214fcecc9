# exercise: LoRA
# differs: A drawn uniformly by kaiming_uniform_ (within 1/√I), products with @, the scaling put on
# what comes out of B, delta under a no_grad decorator
import math

import torch


class LoRA(torch.nn.Module):
    def __init__(self, base, rank: int, scaling: float):
        super().__init__()
        self.scaling = scaling
        like = {"dtype": torch.float32}
        self.lora_A = torch.nn.Parameter(torch.empty(rank, base.in_features, **like))
        self.lora_B = torch.nn.Parameter(torch.empty(base.out_features, rank, **like))
        torch.nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        torch.nn.init.zeros_(self.lora_B)

    def _beside(self, x):
        return ((x.to(torch.float32) @ self.lora_A.mT) @ self.lora_B.mT).mul(self.scaling)

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        beside = self._beside(x)
        answer = base(x)
        return torch.add(answer, beside.type_as(answer))

    @torch.no_grad()
    def delta(self) -> torch.Tensor:
        return torch.einsum("or,ri->oi", self.lora_B, self.lora_A) * self.scaling
