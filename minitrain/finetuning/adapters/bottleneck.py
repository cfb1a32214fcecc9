"""Bottleneck adapters: down-projection to M features, a nonlinearity, up-projection.

    Houlsby    y = f(x);  y + U·gelu(D y + d) + u         after a sublayer's last matrix
    parallel   f(x) + s·(U·relu(D x + d) + u)             beside a whole sublayer, reading its input

U and u start at zero, so that nothing is added at first. The nonlinearity, which LoRA lacks, means
that these cannot be merged: they cost time at every generated token.
Trained: 2·M·D + M + D numbers each. Papers: Houlsby et al., arXiv 1902.00751; He et al., 2110.04366
(parallel, with s = 4).
Shapes: D width  M bottleneck.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.finetuning.layer import Adapter, place_of


class Bottleneck(Adapter):
    """(..., width) -> (..., width)."""

    peft_names = {  # noqa: RUF012  # PEFT has no such method: these are names of our own
        "down": "adapter_down.weight",
        "down_bias": "adapter_down.bias",
        "up": "adapter_up.weight",
        "up_bias": "adapter_up.bias",
    }

    def __init__(
        self,
        base: nn.Module,
        width: int,
        bottleneck: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        place = place_of(base)
        drawn = torch.randn(bottleneck, width, generator=generator, dtype=place["dtype"])
        self.down = nn.Parameter((drawn * width**-0.5).to(**place))  # (M, D)
        self.down_bias = nn.Parameter(torch.zeros(bottleneck, **place))
        self.up = nn.Parameter(torch.zeros(width, bottleneck, **place))  # (D, M)
        self.up_bias = nn.Parameter(torch.zeros(width, **place))


class Houlsby(Bottleneck):
    """Over a linear layer that ends a sublayer."""

    def forward(self, base: nn.Module, x: Tensor) -> Tensor:
        """x (..., I) -> (..., D)."""
        y = base(x)
        inside = F.gelu(F.linear(y.to(self.down.dtype), self.down, self.down_bias))  # (..., M)
        return y + F.linear(inside, self.up, self.up_bias).to(y.dtype)


class Parallel(Bottleneck):
    """Over a sublayer, attention or MLP; `rest` holds the sublayer's other inputs."""

    def __init__(self, *settings: Any, scale: float = 4.0, **more: Any) -> None:
        super().__init__(*settings, **more)
        self.scale = scale

    def forward(self, base: nn.Module, x: Tensor, *rest: Any, **named: Any) -> Any:
        """x (B, T, D) -> (B, T, D), and the sublayer's other outputs."""
        y, *more = given if isinstance(given := base(x, *rest, **named), tuple) else (given,)
        inside = F.relu(F.linear(x.to(self.down.dtype), self.down, self.down_bias))  # (B, T, M)
        y = y + (self.scale * F.linear(inside, self.up, self.up_bias)).to(y.dtype)
        return (y, *more) if isinstance(given, tuple) else y
