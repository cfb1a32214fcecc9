# right: GELU instead of tanh, vectors as an embedding, permute and unbind, a flag says that the MLP is dropped
import torch
from torch import nn


class Prefix(nn.Module):
    def __init__(self, model, count, width):
        super().__init__()
        self.config, self.count, self.enabled = model.config, count, True
        config = model.config
        self.shape = (count, config.layers, 2, config.kv_heads, config.head_size)
        self.start = nn.Embedding(count, width)
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, config.layers * 2 * config.kv_heads * config.head_size)
        self.dropped = False

    def everything(self):
        if self.dropped:
            return self.made
        hidden = nn.functional.gelu(self.first(self.start.weight))
        # (n, L, 2, K, C) -> (L, 2, K, n, C)
        return self.second(hidden).reshape(self.shape).permute(1, 2, 3, 0, 4)

    def of_layer(self, layer):
        keys, values = self.everything()[layer].unbind(0)
        return keys, values

    def drop_mlp(self):
        if not self.dropped:
            made = self.everything().detach().clone()
            del self.start, self.first, self.second
            self.made = nn.Parameter(made)
            self.dropped = True
