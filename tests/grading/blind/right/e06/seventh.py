# a reader's own answers, from the notebook alone
import torch
import torch.nn.functional as F
from minitrain.finetuning.layer import dense_weight


class LoRA(torch.nn.Module):
    """What a layer learns beside itself."""

    def __init__(self, base, rank: int, scaling: float):
        super().__init__()
        self.scaling = scaling
        inputs, outputs = base.in_features, base.out_features
        start_a = torch.randn(rank, inputs, dtype=torch.float32) / inputs**0.5
        start_b = torch.zeros(outputs, rank, dtype=torch.float32)
        self.lora_A = torch.nn.Parameter(start_a)
        self.lora_B = torch.nn.Parameter(start_b)

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        y = base(x)
        inside = F.linear(x.float(), self.lora_A)  # R numbers a token
        added = F.linear(self.scaling * inside, self.lora_B)
        return y + added.to(y.dtype)

    def delta(self) -> torch.Tensor:
        with torch.no_grad():
            return self.scaling * (self.lora_B @ self.lora_A)


def merged_linear(base, delta: torch.Tensor) -> torch.nn.Linear:
    """A frozen linear layer that computes W + delta."""
    weight = dense_weight(base).detach()
    bias = getattr(base, "bias", None)
    total = (weight.float() + delta.detach()).to(weight.dtype)
    linear = torch.nn.Linear(
        base.in_features,
        base.out_features,
        bias=bias is not None,
        device=weight.device,
        dtype=weight.dtype,
    )
    linear.weight.data = total
    if bias is not None:
        linear.bias.data = bias.detach().clone()
    return linear.requires_grad_(False)


class DoRA(LoRA):
    """LoRA turns the rows, `magnitude` (O,) are their lengths."""

    def __init__(self, base, rank: int, scaling: float):
        super().__init__(base, rank, scaling)
        at_start = dense_weight(base).detach().float()
        self.magnitude = torch.nn.Parameter(torch.linalg.vector_norm(at_start, dim=1))

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        bias = getattr(base, "bias", None)
        y = base(x)
        if bias is not None:
            y = y - bias
        with torch.no_grad():
            turned = dense_weight(base).float() + self.delta()
            lengths = torch.linalg.vector_norm(turned, dim=1)
        low_rank = F.linear(self.scaling * F.linear(x, self.lora_A), self.lora_B)
        y = (y + low_rank) * (self.magnitude / lengths)
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
        bent = F.gelu(self.down(y))
        return y + self.up(bent)


class Prefix(torch.nn.Module):
    """Learned keys and values of all layers."""

    def __init__(self, model, count: int, width: int):
        super().__init__()
        self.config, self.count, self.enabled = model.config, count, True
        c = self.config
        numbers = c.layers * 2 * c.kv_heads * c.head_size
        self.vectors = torch.nn.Parameter(torch.randn(count, width))
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, width),
            torch.nn.Tanh(),
            torch.nn.Linear(width, numbers),
        )
        self.register_parameter("kept", None)

    def of_layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        c = self.config
        made = self.mlp(self.vectors) if self.kept is None else self.kept
        made = made.view(self.count, c.layers, 2, c.kv_heads, c.head_size)
        keys, values = made[:, layer, 0], made[:, layer, 1]  # each (n, K, C)
        return keys.transpose(0, 1), values.transpose(0, 1)

    def drop_mlp(self) -> None:
        if self.kept is not None:
            return
        self.kept = torch.nn.Parameter(self.mlp(self.vectors).detach())
        self.mlp = None
        self.vectors = None


class Rows:
    """A batch of B rows, each with its own adapter or none."""

    def __init__(self, tables: list[list[int]], scalings: list[float]):
        longest = max((len(table) for table in tables), default=0)
        filled = [list(table) + [0] * (longest - len(table)) for table in tables]
        self.pages = torch.tensor(filled, dtype=torch.long).view(len(tables), longest)
        self.scalings = torch.tensor(scalings, dtype=torch.float32).view(-1, 1, 1)

    def added(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        pages = self.pages.to(a.device)
        own_a, own_b = a[pages], b[pages]  # (B, R, I), (B, R, O)
        inside = torch.bmm(x, own_a.transpose(1, 2))  # (B, T, R)
        inside = inside * self.scalings.to(inside)
        return torch.bmm(inside, own_b)
