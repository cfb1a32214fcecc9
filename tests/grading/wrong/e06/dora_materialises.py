# exercise: DoRA
# says: put y together from W x and B(A x)

import torch
import torch.nn.functional as F

from minitrain.finetuning.layer import dense_weight


class DoRA(LoRA):
    def __init__(self, base, rank, scaling):
        super().__init__(base, rank, scaling)
        self.magnitude = torch.nn.Parameter(torch.linalg.vector_norm(dense_weight(base), dim=1))

    def forward(self, base, x):
        V = dense_weight(base) + self.scaling * self.lora_B @ self.lora_A
        lengths = torch.linalg.vector_norm(V, dim=1).detach()
        turned = V * (self.magnitude / lengths)[:, None]
        return F.linear(x, turned, getattr(base, "bias", None))
