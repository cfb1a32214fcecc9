"""All that a run carries from one step to the next, and what a checkpoint therefore holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from minitrain.precision.loss_scaling import LossScaler


@dataclass
class TrainState:
    """What changes while a model trains; `loader` has a state_dict and a load_state_dict."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Any
    step: int = 0
    tokens: int = 0  # counted targets, over all ranks
    seconds: float = 0.0  # spent training, over all sessions
    scaler: LossScaler | None = None  # for float16


@dataclass(frozen=True)
class Ranks:
    """Who saves: each rank writes its own file, rank 0 the rest; `barrier` waits for all.

    `may_change`: another number of ranks may resume, since training draws no random numbers; all
    then begin where rank 0 was in the data.
    """

    rank: int = 0
    size: int = 1
    barrier: Callable[[], object] = lambda: None
    may_change: bool = False
