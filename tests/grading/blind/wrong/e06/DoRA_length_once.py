# exercise: DoRA
# says: Take the length of V anew in each forward
# the length is W's, taken once in __init__, not V's in each forward

import torch
from minitrain.finetuning.layer import dense_weight


class DoRA(LoRA):
    def __init__(self, base, rank: int, scaling: float):
        super().__init__(base, rank, scaling)
        lengths = dense_weight(base).detach().float().norm(dim=1)
        self.magnitude = torch.nn.Parameter(lengths.clone())
        self.register_buffer("lengths", lengths)

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        bias = getattr(base, "bias", None)
        y = super().forward(base, x)
        if bias is not None:
            y = y - bias
        y = y * (self.magnitude / self.lengths)
        return y if bias is None else y + bias
