# the scaling is a tensor, which follows the adapter from device to device

import torch


class LoRA(torch.nn.Module):
    def __init__(self, base, rank, scaling):
        super().__init__()
        self.register_buffer("scaling", torch.tensor(scaling))
        self.lora_A = torch.nn.Parameter(torch.randn(rank, base.in_features))
        self.lora_A.data /= base.in_features**0.5
        self.lora_B = torch.nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, base, x):
        y, inside = base(x), x.float() @ self.lora_A.T * self.scaling
        return y + (inside @ self.lora_B.T).to(y.dtype)

    @torch.no_grad()
    def delta(self):
        return self.scaling * self.lora_B @ self.lora_A
