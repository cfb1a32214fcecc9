# a reader's answer to `DoRA`, in which others made the mistakes of wrong/e06/DoRA_reader.diff

import torch
import torch.nn.functional as F
from minitrain.finetuning.layer import dense_weight

if "LoRA" not in globals():  # in the notebook it is the learner's own; here so that the file stands alone

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
            return (self.scaling * self.lora_B @ self.lora_A).detach()


class DoRA(LoRA):
    def __init__(self, base, rank, scaling):
        super().__init__(base, rank, scaling)
        W = dense_weight(base).detach().float()
        self.magnitude = torch.nn.Parameter(torch.linalg.vector_norm(W, dim=1))

    def forward(self, base, x):
        with torch.no_grad():
            V = dense_weight(base).float() + self.scaling * self.lora_B @ self.lora_A
        lengths = torch.linalg.vector_norm(V.detach(), dim=1)
        bias = getattr(base, "bias", None)
        y = base(x) if bias is None else base(x) - bias
        y = y + self.scaling * F.linear(F.linear(x, self.lora_A), self.lora_B)
        y = y * (self.magnitude / lengths)
        return y if bias is None else y + bias
