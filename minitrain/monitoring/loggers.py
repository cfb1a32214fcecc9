"""TensorBoard and Weights & Biases as sinks, both optional packages, one sample a second.

    tensorboard --logdir runs/NAME/tensorboard
    wandb sync runs/NAME/wandb/offline-run-…      uploads, on request: nothing is sent before

Every number of a sample becomes a scalar at its step; step parts are grouped under `parts/`.
"""

from __future__ import annotations

import os
from pathlib import Path

from minitrain.optional import optional
from minitrain.training.report import Sample, Sink

ALWAYS = ("held_out", "ended")


class TensorBoard:
    """A sink; wrap it in `Thinned`, since a scalar costs some 30 µs."""

    def __init__(self, folder: str | os.PathLike) -> None:
        optional("--log-to tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.writer, self.step = SummaryWriter(str(Path(folder) / "tensorboard")), 0

    def __call__(self, sample: Sample) -> None:
        self.step = int(sample.get("step", self.step))
        for name, value in flat(sample).items():
            if name not in ("time", "step"):
                self.writer.add_scalar(name, value, self.step, walltime=sample["time"])

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """A sink that works offline, without an account; wrap it in `Thinned`."""

    def __init__(self, folder: str | os.PathLike) -> None:
        wandb = optional("--log-to wandb", "wandb")
        self.run = wandb.init(
            project="minitrain",
            name=Path(folder).resolve().name,
            dir=str(folder),
            mode="offline",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        self.step = 0

    def __call__(self, sample: Sample) -> None:
        self.step = int(sample.get("step", self.step))
        self.run.log(flat(sample), step=self.step)

    def close(self) -> None:
        self.run.finish()


def flat(sample: Sample) -> dict[str, float]:
    """The sample's numbers: {"loss": 1.3, "parts/forward": 0.01}."""
    numbers = {}
    for name, value in sample.items():
        if isinstance(value, dict):
            numbers |= {f"{name}/{part}": each for part, each in value.items()}
        elif isinstance(value, (int, float)):
            numbers[name] = value
    return numbers


class Thinned:
    """Gives `sink` the first sample of each second, and each with an evaluation or the run's end.

    A step of a small model takes a few milliseconds, and TensorBoard's writer half of one.
    Skipped samples are merged into the next, so a value that comes once a minute is not lost.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink, self.next = sink, 0.0
        self.held: Sample = {}

    def __call__(self, sample: Sample) -> None:
        self.held |= sample
        if sample["time"] >= self.next or any(name in sample for name in ALWAYS):
            self.next = sample["time"] + 1.0
            held, self.held = self.held, {}
            self.sink(held)

    def close(self) -> None:
        self.sink.close()
