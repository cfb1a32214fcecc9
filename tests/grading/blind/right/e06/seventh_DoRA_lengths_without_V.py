# exercise: DoRA
# differs: the length of V without ever making V: ‖W‖² + 2·rows of (W Aᵀ)∘sB + rows of (sB A
# Aᵀ)∘sB; the bias put right at the end (LoRA repeated so that the file stands alone)
import torch
import torch.nn.functional as F
from minitrain.finetuning.layer import dense_weight


class LoRA(torch.nn.Module):
    def __init__(self, base, rank: int, scaling: float):
        super().__init__()
        self.scaling = scaling
        random = torch.randn(rank, base.in_features) * base.in_features**-0.5
        self.lora_A = torch.nn.Parameter(random)
        self.lora_B = torch.nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        y = base(x)
        inside = F.linear(x.float(), self.lora_A) * self.scaling
        return y + F.linear(inside, self.lora_B).to(y.dtype)

    def delta(self) -> torch.Tensor:
        return (self.scaling * self.lora_B @ self.lora_A).detach()


class DoRA(LoRA):
    def __init__(self, base, rank: int, scaling: float):
        super().__init__(base, rank, scaling)
        self.magnitude = torch.nn.Parameter(self._lengths(base))  # B is zero yet

    @torch.no_grad()
    def _lengths(self, base):
        weight, a = dense_weight(base).float(), self.lora_A
        b = self.scaling * self.lora_B
        squares = weight.square().sum(1)
        squares = squares + 2 * ((weight @ a.T) * b).sum(1)
        squares = squares + ((b @ (a @ a.T)) * b).sum(1)
        return squares.clamp(min=0).sqrt()

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        share = self.magnitude / self._lengths(base)
        low_rank = self.scaling * ((x @ self.lora_A.T) @ self.lora_B.T)
        y = share * (base(x) + low_rank)
        bias = getattr(base, "bias", None)
        if bias is not None:  # it was scaled with the rest
            y = y + (1 - share) * bias
        return y
