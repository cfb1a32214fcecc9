# a reader's own answers, from the notebook alone
import torch
import torch.nn.functional as F
from minitrain.finetuning.layer import dense_weight


class LoRA(torch.nn.Module):
    """What a layer learns beside itself."""

    def __init__(self, base, rank: int, scaling: float):
        super().__init__()
        self.scaling = scaling
        ins, outs = base.in_features, base.out_features
        drawn = torch.randn(rank, ins, dtype=torch.float32) / ins**0.5
        self.lora_A = torch.nn.Parameter(drawn)
        self.lora_B = torch.nn.Parameter(torch.zeros(outs, rank, dtype=torch.float32))

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        answer = base(x)
        inside = F.linear(x.float(), self.lora_A) * self.scaling
        learned = F.linear(inside, self.lora_B)
        return answer + learned.to(answer.dtype)

    @torch.no_grad()
    def delta(self) -> torch.Tensor:
        return self.scaling * (self.lora_B @ self.lora_A)


def merged_linear(base, delta: torch.Tensor) -> torch.nn.Linear:
    weight, bias = dense_weight(base).detach(), getattr(base, "bias", None)
    outs, ins = weight.shape
    place = {"dtype": weight.dtype, "device": weight.device}
    linear = torch.nn.Linear(ins, outs, bias=bias is not None, **place)
    with torch.no_grad():
        linear.weight.copy_(weight.float() + delta)  # rounded once, by the copy
        if bias is not None:
            linear.bias.copy_(bias)
    return linear.requires_grad_(False)


class DoRA(LoRA):
    """LoRA turns the rows, `magnitude` (O,) are their lengths."""

    def __init__(self, base, rank: int, scaling: float):
        super().__init__(base, rank, scaling)
        rows = dense_weight(base).detach().float()
        self.magnitude = torch.nn.Parameter(torch.linalg.vector_norm(rows, dim=1))

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        bias = getattr(base, "bias", None)
        with torch.no_grad():
            turned = dense_weight(base).float() + self.delta()
            lengths = torch.linalg.vector_norm(turned, dim=1)
            lengths = lengths.clamp(min=torch.finfo(torch.float32).tiny)
        factor = self.magnitude / lengths  # (O,)
        y = base(x)
        if bias is not None:
            y = y - bias
        added = F.linear(F.linear(x, self.lora_A) * self.scaling, self.lora_B)
        y = (y + added) * factor
        return y if bias is None else y + bias


class Houlsby(torch.nn.Module):
    """A bottleneck after a layer."""

    def __init__(self, base, width: int, bottleneck: int):
        super().__init__()
        self.down = torch.nn.Linear(width, bottleneck)
        self.up = torch.nn.Linear(bottleneck, width)
        torch.nn.init.zeros_(self.up.weight)
        torch.nn.init.zeros_(self.up.bias)

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        y = base(x)
        return y + self.up(F.gelu(self.down(y)))


class Prefix(torch.nn.Module):
    """Learned keys and values of all layers."""

    def __init__(self, model, count: int, width: int):
        super().__init__()
        self.config, self.count, self.enabled = model.config, count, True
        config = self.config
        numbers = config.layers * 2 * config.kv_heads * config.head_size
        self.vectors = torch.nn.Parameter(torch.randn(count, width))
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, width),
            torch.nn.Tanh(),
            torch.nn.Linear(width, numbers),
        )
        self.register_parameter("kept", None)

    def of_layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.kept if self.mlp is None else self.mlp(self.vectors)
        heads, size = self.config.kv_heads, self.config.head_size
        made = made.view(self.count, self.config.layers, 2, heads, size)
        own = made[:, layer]  # (n, 2, K, C)
        keys, values = own.permute(1, 2, 0, 3)
        return keys, values

    def drop_mlp(self) -> None:
        if self.mlp is None:
            return
        with torch.no_grad():
            made = self.mlp(self.vectors)
        self.kept = torch.nn.Parameter(made)
        self.mlp = None
        self.vectors = None


class Rows:
    """A batch of B rows, each with its own adapter or none."""

    def __init__(self, tables: list[list[int]], scalings: list[float]):
        longest = max((len(table) for table in tables), default=0)
        filled = [[*table, *[0] * (longest - len(table))] for table in tables]
        pages = torch.tensor(filled, dtype=torch.long)
        self.pages = pages.view(len(tables), longest)
        self.scalings = torch.tensor(scalings, dtype=torch.float32).view(-1, 1, 1)

    def added(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        pages = self.pages.to(a.device)
        own_a, own_b = a[pages], b[pages]  # (B, R, I), (B, R, O)
        inside = torch.bmm(x, own_a.transpose(1, 2)) * self.scalings.to(x)
        return torch.bmm(inside, own_b)
