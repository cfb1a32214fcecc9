# exercise: Prefix
# says: a second drop_mlp() fails
# a second drop_mlp fails: it calls the MLP that is no longer there

import torch


class Prefix(torch.nn.Module):
    def __init__(self, model, count, width):
        super().__init__()
        self.config, self.count, self.enabled = model.config, count, True
        c = self.config
        out = c.layers * 2 * c.kv_heads * c.head_size
        self.vectors = torch.nn.Parameter(torch.randn(count, width))
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, out)
        )
        self.kept = None

    def of_layer(self, layer):
        c = self.config
        made = self.kept if self.mlp is None else self.mlp(self.vectors)
        made = made.view(self.count, c.layers, 2, c.kv_heads, c.head_size)[:, layer]
        return made[:, 0].transpose(0, 1), made[:, 1].transpose(0, 1)

    def drop_mlp(self):
        self.kept = torch.nn.Parameter(self.mlp(self.vectors).detach())
        self.mlp = None
        self.vectors = None
