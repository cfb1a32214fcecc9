# exercise: Houlsby
# says: D reads y, which the layer gives
# reads the layer's input x instead of its answer y: works only where the layer has as many
# features in as out, and is wrong there

import torch
import torch.nn.functional as F


class Houlsby(torch.nn.Module):
    def __init__(self, base, width, bottleneck):
        super().__init__()
        self.down = torch.nn.Linear(width, bottleneck)
        self.up = torch.nn.Linear(bottleneck, width)
        torch.nn.init.zeros_(self.up.weight)
        torch.nn.init.zeros_(self.up.bias)

    def forward(self, base, x):
        return base(x) + self.up(F.gelu(self.down(x)))
