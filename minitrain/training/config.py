"""Training configuration: the length of a run, its learning rate, its batch; checked when it is
made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from minitrain.errors import InputError


@dataclass(frozen=True)
class TrainConfig:
    """Training settings. Give `steps`, or `seconds`; rates are fractions where they say so."""

    steps: int | None = None
    seconds: float | None = None
    lr: float = 4e-3
    final_lr: float = 0.0  # fraction of lr
    warmup: float = 0.05  # fraction of the run
    accumulate: int = 1  # microbatches a step
    clip: float = 1.0
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    autocast: torch.dtype | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.seconds is None):
            raise InputError(
                f"give steps or seconds, one of them, not {self.steps} and {self.seconds}"
            )
        for name in ("steps", "seconds", "lr", "accumulate", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} is {value}: it must be more than 0")
        if not 0 <= self.warmup < 1 or not 0 <= self.final_lr <= 1:
            raise InputError(f"warmup={self.warmup}, final_lr={self.final_lr}: fractions, 0 to 1")

    def total_steps(self, step: int, elapsed: float) -> float:
        """The number of steps of the run: as given, or as `seconds` allow at the speed so far.

        With a time limit, step / total is then elapsed / seconds: the cosine ends when time is out.
        The first step finds the speed; its rate is 0, since its total is infinite.
        """
        if self.steps is not None:
            return self.steps
        return step * self.seconds / elapsed if step else math.inf
