# exercise: Prefix
# differs: vectors in an Embedding of another size, SiLU as the bend, layer first by permute, the
# parts deleted on dropping; merged_linear by deepcopy-free assignment of Parameters
import torch
from minitrain.finetuning.layer import dense_weight


class Prefix(torch.nn.Module):
    def __init__(self, model, count: int, width: int):
        super().__init__()
        self.config, self.count, self.enabled = model.config, count, True
        self.shape = (
            count,
            self.config.layers,
            2,
            self.config.kv_heads,
            self.config.head_size,
        )
        numbers = 2 * self.config.layers * self.config.kv_heads * self.config.head_size
        self.words = torch.nn.Embedding(count, 2 * width)
        self.hidden = torch.nn.Linear(2 * width, width)
        self.out = torch.nn.Linear(width, numbers)

    def _all(self):
        """(L, 2, K, n, C)"""
        if hasattr(self, "table"):
            return self.table
        made = self.out(torch.nn.functional.silu(self.hidden(self.words.weight)))
        return made.reshape(self.shape).permute(1, 2, 3, 0, 4)

    def of_layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._all()[layer]
        return keys, values

    def drop_mlp(self) -> None:
        if hasattr(self, "table"):
            return
        with torch.no_grad():
            table = self._all().contiguous()
        del self.words, self.hidden, self.out
        self.table = torch.nn.Parameter(table)


def merged_linear(base, delta: torch.Tensor) -> torch.nn.Linear:
    with torch.no_grad():
        weight, bias = dense_weight(base), getattr(base, "bias", None)
        linear = torch.nn.Linear(base.in_features, base.out_features, bias=False)
        total = torch.add(delta, weight.to(delta.dtype)).to(weight.dtype)
        linear.weight = torch.nn.Parameter(total, requires_grad=False)
        if bias is not None:
            linear.bias = torch.nn.Parameter(bias.clone(), requires_grad=False)
    return linear
