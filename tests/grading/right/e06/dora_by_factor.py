import torch
import torch.nn.functional as F
from torch import nn

from minitrain.finetuning.layer import dense_weight


class DoRA(LoRA):
    """As the package puts it together: W x, and what a factor other than 1 changes of it."""

    def __init__(self, base, rank, scaling):
        super().__init__(base, rank, scaling)
        self.magnitude = nn.Parameter(self.row_lengths(base))

    @torch.no_grad()
    def row_lengths(self, base):
        return (dense_weight(base) + self.delta()).square().sum(1).sqrt()

    def forward(self, base, x):
        y = base(x)
        f = self.magnitude / self.row_lengths(base)
        plain = y if getattr(base, "bias", None) is None else y - base.bias
        low = F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scaling
        return y + (f - 1) * plain + f * low
