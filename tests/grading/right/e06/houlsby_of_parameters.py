import torch
import torch.nn.functional as F


class Houlsby(torch.nn.Module):
    def __init__(self, base, width, bottleneck):
        super().__init__()
        self.D = torch.nn.Parameter(torch.randn(bottleneck, width) * width**-0.5)
        self.d = torch.nn.Parameter(torch.zeros(bottleneck))
        self.U = torch.nn.Parameter(torch.zeros(width, bottleneck))
        self.u = torch.nn.Parameter(torch.zeros(width))

    def forward(self, base, x):
        y = base(x)
        inside = F.gelu(y @ self.D.T + self.d)
        return y + inside @ self.U.T + self.u
