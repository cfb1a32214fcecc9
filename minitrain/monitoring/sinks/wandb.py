"""Weights & Biases, offline: `wandb sync runs/NAME/wandb/offline-run-…` uploads it, if you wish.

Nothing is sent while the run trains, and no account is needed. An optional package.
"""

from __future__ import annotations

from pathlib import Path

from minitrain.monitoring.sinks.tensorboard import flat
from minitrain.optional import optional
from minitrain.training.report import Sample


class Wandb:
    """A sink; give it to `Thinned`."""

    def __init__(self, folder: Path) -> None:
        wandb = optional("--log-to wandb", "wandb")
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
        self.run = wandb.init(
            project="minitrain",
            name=folder.resolve().name,
            dir=str(folder),
            mode="offline",
            settings=settings,
        )
        self.step = 0

    def __call__(self, sample: Sample) -> None:
        self.step = int(sample.get("step", self.step))
        self.run.log(flat(sample), step=self.step)

    def close(self) -> None:
        self.run.finish()
