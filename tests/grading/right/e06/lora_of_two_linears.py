import torch
import torch.nn.functional as F


class LoRA(torch.nn.Module):
    """Scaled at the end; the draw is uniform."""

    def __init__(self, base, rank, scaling):
        super().__init__()
        bound = base.in_features**-0.5
        self.scaling = scaling
        self.lora_A = torch.nn.Parameter(torch.rand(rank, base.in_features) * 2 * bound - bound)
        self.lora_B = torch.nn.Parameter(torch.zeros((base.out_features, rank)))

    def low(self, x):
        return F.linear(F.linear(x, self.lora_A), self.lora_B, None).mul(self.scaling)

    def forward(self, base, x):
        out = base(x)
        extra = self.low(x.to(torch.float32))
        return torch.add(out, extra.type_as(out))

    def delta(self):
        return (self.scaling * self.lora_B.matmul(self.lora_A)).detach()
