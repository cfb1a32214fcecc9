"""Reliability as lab e12 writes it, each idea in a few lines.

    save_whole, newest_whole    a file that is complete or absent; the newest complete one
    AsyncSaver                  a copy, written beside the training
    reshard                     a flat tensor from n files to m ranks
    Snapshot                    all state of a run, saved and restored
    slow_ranks                  from compute time before the collective
    SpikeRule                   an outlying loss: skipped, or the run rolls back
    best_interval               how often to save (Daly)

`checkpoint/`, `spikes`, `stragglers` and `planning/failures` do the same for runs on many ranks.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minitrain.reliability.disk import Folder, FragileDisk

Disk = Folder | FragileDisk


def save_naive(disk: Disk, step: int, data: bytes) -> None:
    """Writes straight to the final name: meanwhile the newest checkpoint is half written."""
    disk.write(f"step-{step:08d}", zlib.crc32(data).to_bytes(4, "little") + data)


def save_whole(disk: Disk, step: int, data: bytes) -> None:
    """Writes the file step-00000120, completely or not at all, durable on return."""
    name = f"step-{step:08d}"
    disk.write(f".{name}.new", zlib.crc32(data).to_bytes(4, "little") + data)
    disk.flush(f".{name}.new")
    disk.rename(f".{name}.new", name)
    disk.flush_names()


def newest_whole(disk: Disk) -> tuple[int, bytes] | None:
    """(step, data) of the newest file with a correct checksum; None if there is none."""
    steps = [int(name[5:]) for name in disk.names() if name.startswith("step-")]
    for step in sorted(steps, reverse=True):
        content = disk.read(f"step-{step:08d}")
        checksum, data = content[:4], content[4:]
        if len(checksum) == 4 and zlib.crc32(data).to_bytes(4, "little") == checksum:
            return step, data
    return None


class AsyncSaver:
    """Runs `write(step, tensors)` beside the training, one at a time; `start(function, *arguments)`
    starts it and returns a handle, whose `result()` waits for it and raises its error."""

    def __init__(self, start: Callable, write: Callable[[int, dict[str, Tensor]], None]) -> None:
        self.start, self.write, self.running = start, write, None

    def save(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Returns once the copy is made. Raises the error of the previous save."""
        self.wait()
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.running = self.start(self.write, step, copies)

    def wait(self) -> None:
        """Waits until the save in progress is complete."""
        running, self.running = self.running, None
        if running is not None:
            running.result()


def reshard(
    read: Callable[[int, int, int], Tensor],
    elements: int,
    old: int,
    new: int,
    rank: int,
    dtype: torch.dtype,
) -> Tensor:
    """The part of `rank` of `new`, (⌈elements/new⌉,), from files of `old` ranks; zeros at the end.
    `read(file, start, stop)` returns those elements of a file."""
    size, wanted = -(-elements // old), -(-elements // new)
    out = torch.zeros(wanted, dtype=dtype)
    first, last = rank * wanted, min((rank + 1) * wanted, elements)
    for file in range(old):
        start = max(first, file * size)
        stop = min(last, (file + 1) * size)
        if start < stop:
            out[start - first : stop - first] = read(file, start - file * size, stop - file * size)
    return out


class Snapshot:
    """The whole state of a run at this moment, as copies."""

    def __init__(self, run: Any) -> None:
        parts = run.model, run.optimizer, run.schedule, run.loader
        self.parts = deepcopy([part.state_dict() for part in parts])
        self.generators = torch.get_rng_state(), np.random.get_state(), random.getstate()

    def restore(self, run: Any) -> None:
        """Restores the state into any run of the same structure; may be repeated."""
        parts = run.model, run.optimizer, run.schedule, run.loader
        for part, state in zip(parts, deepcopy(self.parts)):
            part.load_state_dict(state)
        torch.set_rng_state(self.generators[0])  # last: loading may draw random numbers
        np.random.set_state(self.generators[1])
        random.setstate(self.generators[2])


def slow_ranks(times: Tensor, factor: float = 1.1) -> list[int]:
    """times (N, S, 3): when each rank began each step, reached its collective, and left it."""
    compute = (times[:, :, 1] - times[:, :, 0]).median(dim=1).values  # (N,)
    middle = compute.median()
    deviation = 1.4826 * (compute - middle).abs().median()
    limit = torch.maximum(factor * middle, middle + 5 * deviation)
    return (compute > limit).nonzero()[:, 0].tolist()


class SpikeRule:
    """Called with each step's loss before the step is taken: "take", "skip" or "back"."""

    def __init__(
        self, alpha: float = 0.97, z: float = 6.0, warmup: int = 25, patience: int = 3
    ) -> None:
        self.alpha, self.z, self.warmup, self.patience = alpha, z, warmup, patience
        self.count, self.mean, self.variance, self.skipped = 0, 0.0, 0.0, 0

    def __call__(self, loss: float) -> str:
        """The decision for this step."""
        far = loss - self.mean
        deviation = max(math.sqrt(self.variance), 1e-3 * abs(self.mean))
        is_spike = self.count >= self.warmup and far > self.z * deviation
        if is_spike or not math.isfinite(loss):
            self.skipped = (self.skipped + 1) % self.patience
            return "skip" if self.skipped else "back"
        self.skipped, self.count = 0, self.count + 1
        keep = min(self.alpha, 1 - 1 / self.count)
        self.mean += (1 - keep) * far
        self.variance = keep * (self.variance + (1 - keep) * far**2)
        return "take"


def best_interval(save_seconds: float, chips: int, failures: int, chip_hours: float) -> float:
    """Seconds of training between saves on `chips` chips, from a failure rate of `failures` per
    `chip_hours`."""
    if failures == 0:
        return math.inf
    between = chip_hours * 3600 / failures / chips
    if save_seconds >= 2 * between:
        return between
    x = math.sqrt(save_seconds / (2 * between))
    return math.sqrt(2 * save_seconds * between) * (1 + x / 3 + x**2 / 9) - save_seconds
