"""The state of a run: all that a step changes, and what a checkpoint therefore holds.

Cost: 12 P bytes for P float32 parameters under AdamW (weight and two means); gradients live only
within a step. Lab: e01.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from minitrain.precision.loss_scaling import LossScaler


@dataclass
class TrainState:
    """Updated in place, step after step; `loader` has a state_dict and a load_state_dict."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Any
    step: int = 0
    tokens: int = 0  # counted targets, over all ranks
    seconds: float = 0.0  # spent training, over all sessions
    scaler: LossScaler | None = None  # for float16
