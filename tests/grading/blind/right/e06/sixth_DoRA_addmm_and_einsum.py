# exercise: DoRA
# how it differs: y = base(x) + (m/‖V‖ - 1)·(W x) + m/‖V‖·s·B(A x), V by one addmm, lengths by
# einsum and detached, the low-rank part computed by matmul
import torch
from minitrain.finetuning.layer import dense_weight


class DoRA(LoRA):  # noqa: F821
    """LoRA turns the rows, `magnitude` (O,) are their lengths."""

    def __init__(self, base, rank: int, scaling: float):
        super().__init__(base, rank, scaling)
        w = dense_weight(base).detach().float()
        self.magnitude = torch.nn.Parameter(torch.einsum("oi,oi->o", w, w).sqrt())

    def _lengths(self, base):
        w = dense_weight(base).detach().float()
        b, a = self.lora_B.detach(), self.lora_A.detach()
        v = torch.addmm(w, b, a, alpha=self.scaling)
        return torch.einsum("oi,oi->o", v, v).sqrt().clamp(min=1e-30)

    def forward(self, base, x):
        y = base(x)
        ratio = self.magnitude / self._lengths(base)
        bias = getattr(base, "bias", None)
        unbiased = y if bias is None else y - bias
        low = (x @ self.lora_A.mT) @ (self.lora_B.mT * self.scaling)
        return y + (ratio - 1) * unbiased + ratio * low
