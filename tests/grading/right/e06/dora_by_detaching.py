import torch
import torch.nn.functional as F

from minitrain.finetuning.layer import dense_weight


class DoRA(LoRA):
    def __init__(self, base, rank, scaling):
        super().__init__(base, rank, scaling)
        self.magnitude = torch.nn.Parameter(dense_weight(base).norm(p=2, dim=-1).clone())

    def forward(self, base, x):
        factors = self.lora_B.detach(), self.lora_A.detach()
        V = torch.addmm(dense_weight(base), *factors, alpha=self.scaling)
        share = self.magnitude / V.norm(dim=-1)
        bias = getattr(base, "bias", None)
        zero = torch.zeros_like(self.magnitude) if bias is None else bias
        low = (x @ self.lora_A.T) @ self.lora_B.T
        return (base(x) - zero + self.scaling * low) * share + zero
