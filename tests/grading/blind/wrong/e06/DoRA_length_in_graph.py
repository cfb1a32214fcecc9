# exercise: DoRA
# says: the length ‖V‖ is in the graph
# the length is no constant in backward: V is made of B @ A with its gradient

import torch
from minitrain.finetuning.layer import dense_weight


class DoRA(LoRA):
    def __init__(self, base, rank: int, scaling: float):
        super().__init__(base, rank, scaling)
        self.magnitude = torch.nn.Parameter(
            dense_weight(base).detach().float().norm(dim=1)
        )

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        bias = getattr(base, "bias", None)
        y = super().forward(base, x)
        if bias is not None:
            y = y - bias
        V = dense_weight(base) + self.scaling * self.lora_B @ self.lora_A
        y = y * (self.magnitude / V.norm(dim=1))
        return y if bias is None else y + bias
