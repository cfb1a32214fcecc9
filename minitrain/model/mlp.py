"""SwiGLU: `up` makes F features, `gate` scales each of them, `down` projects back.

    y = down(silu(gate(x))·up(x))

Cost a token: 6·D·F FLOPs forward; saves 4·F numbers for backward (gate, silu(gate), up and their
product), and x. Selective recomputation (memory/selective.py) keeps half of them.
Paper: Shazeer, arXiv 2002.05202. Lab: e01. Shapes: B batch  T tokens  D width  F width inside.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.model.config import ModelConfig


class MLP(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.up = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.down = nn.Linear(config.ffn_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(swiglu(self.gate(x), self.up(x)))  # (B, T, F) -> (B, T, D)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """gate and up (B, T, F) -> (B, T, F)."""
    return F.silu(gate) * up
