# exercise: Houlsby
# says: after the first backward neither U nor D has any gradient
# down begins as zero, too: down and up.weight never get a gradient, only the last bias can
# learn

import torch
import torch.nn.functional as F


class Houlsby(torch.nn.Module):
    def __init__(self, base, width, bottleneck):
        super().__init__()
        self.down = torch.nn.Linear(width, bottleneck)
        self.up = torch.nn.Linear(bottleneck, width)
        torch.nn.init.zeros_(self.up.weight)
        torch.nn.init.zeros_(self.up.bias)
        torch.nn.init.zeros_(self.down.weight)
        torch.nn.init.zeros_(self.down.bias)

    def forward(self, base, x):
        y = base(x)
        return y + self.up(F.gelu(self.down(y)))
