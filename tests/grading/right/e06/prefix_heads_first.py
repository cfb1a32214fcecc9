import torch
from torch import nn


class Prefix(nn.Module):
    """Another layout of the table: layer, kind, head, and then tokens and features."""

    def __init__(self, model, count, width):
        super().__init__()
        self.enabled, self.count = True, count
        config = model.config
        self.shape = (config.layers, 2, config.kv_heads, config.head_size)
        self.words = nn.Embedding(count, 10)
        self.up = nn.Linear(10, width)
        self.out = nn.Linear(width, config.layers * 2 * config.kv_heads * config.head_size)
        self.made = None

    def everything(self):
        if self.made is not None:
            return self.made
        rows = self.out(torch.relu(self.up(self.words.weight)))
        return rows.t().reshape(*self.shape, self.count).transpose(-1, -2)

    def of_layer(self, layer):
        keys, values = self.everything()[layer]
        return keys, values

    def drop_mlp(self):
        if self.made is None:
            with torch.no_grad():
                table = self.everything().clone()
            del self.words, self.up, self.out, self.made
            self.made = nn.Parameter(table)
