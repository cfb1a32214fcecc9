# exercise: LoRA
# says: the layer is given x as it came
# x is overwritten by x.float() before the layer is called: the layer (bfloat16) gets float32

import torch


class LoRA(torch.nn.Module):
    def __init__(self, base, rank: int, scaling: float):
        super().__init__()
        self.scaling = scaling
        I, O = base.in_features, base.out_features
        self.lora_A = torch.nn.Parameter(torch.randn(rank, I) / I**0.5)
        self.lora_B = torch.nn.Parameter(torch.zeros(O, rank))

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        y = base(x)
        added = self.scaling * (x @ self.lora_A.T) @ self.lora_B.T
        return y + added.to(y.dtype)

    def delta(self) -> torch.Tensor:
        return (self.scaling * self.lora_B @ self.lora_A).detach()
