# exercise: Houlsby
# says: after the first backward neither U nor D has any gradient
# both matrices begin at zero: gelu(0) = 0, so neither ever moves

import torch
import torch.nn.functional as F


class Houlsby(torch.nn.Module):
    def __init__(self, base, width: int, bottleneck: int):
        super().__init__()
        self.down = torch.nn.Parameter(torch.zeros(bottleneck, width))
        self.down_bias = torch.nn.Parameter(torch.zeros(bottleneck))
        self.up = torch.nn.Parameter(torch.zeros(width, bottleneck))
        self.up_bias = torch.nn.Parameter(torch.zeros(width))

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        y = base(x)
        hidden = F.gelu(F.linear(y, self.down, self.down_bias))
        return y + F.linear(hidden, self.up, self.up_bias)
