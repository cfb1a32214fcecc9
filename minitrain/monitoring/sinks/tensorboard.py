"""TensorBoard: `tensorboard --logdir runs/NAME/tensorboard`. An optional package.

Every number of a sample is a scalar at its step; parts of a step are grouped under `parts/`.
"""

from __future__ import annotations

from pathlib import Path

from minitrain.optional import optional
from minitrain.training.report import Sample

FOLDER = "tensorboard"


class TensorBoard:
    """A sink; give it to `Thinned`, since a scalar costs some 30 µs."""

    def __init__(self, folder: Path) -> None:
        optional("--log-to tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.writer, self.step = SummaryWriter(str(folder / FOLDER)), 0

    def __call__(self, sample: Sample) -> None:
        self.step = int(sample.get("step", self.step))
        for name, value in flat(sample).items():
            if name not in ("time", "step"):
                self.writer.add_scalar(name, value, self.step, walltime=sample["time"])

    def close(self) -> None:
        self.writer.close()


def flat(sample: Sample) -> dict[str, float]:
    """Its numbers: {"loss": 1.3, "parts/forward": 0.01}."""
    numbers = {}
    for name, value in sample.items():
        if isinstance(value, dict):
            numbers |= {f"{name}/{part}": each for part, each in value.items()}
        elif isinstance(value, (int, float)):
            numbers[name] = value
    return numbers
