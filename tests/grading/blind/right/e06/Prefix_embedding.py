# right: vectors in an Embedding of a size of their own, ReLU MLP, other order of the output, delattr
import torch


class Prefix(torch.nn.Module):
    def __init__(self, model, count: int, width: int):
        super().__init__()
        self.config, self.count, self.enabled = model.config, count, True
        cfg = model.config
        token = cfg.kv_heads * cfg.head_size
        self.shape = (2, cfg.layers, cfg.kv_heads, cfg.head_size)
        self.embedding = torch.nn.Embedding(count, token)
        self.first = torch.nn.Linear(token, width)
        self.second = torch.nn.Linear(width, 2 * cfg.layers * token)

    def make(self):
        middle = torch.relu(self.first(self.embedding.weight))
        made = self.second(middle).unflatten(1, self.shape)  # (n, 2, L, K, C)
        return torch.einsum("nslkc->lsknc", made)

    def of_layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        everything = self.table if hasattr(self, "table") else self.make()
        return everything[layer, 0], everything[layer, 1]

    @torch.no_grad()
    def drop_mlp(self) -> None:
        if not hasattr(self, "table"):
            self.table = torch.nn.Parameter(self.make().contiguous())
            del self.embedding, self.first, self.second
