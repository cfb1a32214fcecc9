"""The state of a run: everything a step changes, and therefore everything a checkpoint holds.

Cost: 12 P bytes for P float32 parameters under AdamW (weight and two moments); gradients live only
within a step. Lab: e01.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from minitrain.precision.loss_scaling import LossScaler

PROCESS = uuid.uuid4().hex


@dataclass
class TrainState:
    """Updated in place, step after step; `loader` has a state_dict and a load_state_dict.

    `extra`: other state of the run that is the same on every rank, by name, such as
    {"ema": averaged_model, "schedule": lr_scheduler, "mine": {"best": 1.9}}: anything with these
    two methods, or a dict, of numbers, strings and tensors.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Any
    step: int = 0
    tokens: int = 0  # counted targets, over all ranks
    seconds: float = 0.0  # spent training, over all sessions
    scaler: LossScaler | None = None  # for float16
    extra: dict[str, Any] = field(default_factory=dict)
    run: str = ""  # identifies the run in its checkpoint folder; restored by a checkpoint

    def __post_init__(self) -> None:
        self.run = self.run or f"{PROCESS}-{id(self.optimizer):x}"
