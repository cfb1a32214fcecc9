# exercise: LoRA
# says: B·A costs R·O·I more multiplications and a matrix of W's size
# computes s·(B A) x: makes the O x I matrix in each forward, the numbers are right but the
# order is the one the text rules out

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
        both = self.scaling * self.lora_B @ self.lora_A  # (O, I)
        return y + F.linear(x.float(), both).to(y.dtype)

    def delta(self):
        return (self.scaling * self.lora_B @ self.lora_A).detach()
