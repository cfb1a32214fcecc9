# exercise: Prefix
# says: what the MLP made becomes a parameter
# drop_mlp keeps the parameter, but MLP and vectors stay in the module

import torch


class Prefix(torch.nn.Module):
    def __init__(self, model, count: int, width: int):
        super().__init__()
        self.config, self.count, self.enabled = model.config, count, True
        c = self.config
        size = c.layers * 2 * c.kv_heads * c.head_size
        self.vectors = torch.nn.Parameter(torch.randn(count, width))
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, size)
        )
        self.kept = None

    def of_layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        c = self.config
        flat = self.mlp(self.vectors) if self.kept is None else self.kept
        flat = flat.view(self.count, c.layers, 2, c.kv_heads, c.head_size)
        keys, values = flat[:, layer].permute(1, 2, 0, 3)
        return keys, values

    def drop_mlp(self) -> None:
        if self.kept is None:
            self.kept = torch.nn.Parameter(self.mlp(self.vectors).detach())
