# a reader's own answers, from the notebook alone
import math
import random
import zlib
from copy import deepcopy

import numpy as np
import torch


def save_whole(disk, step: int, data: bytes) -> None:
    name = f"step-{step:08d}"
    part = f".{name}.new"
    disk.write(part, zlib.crc32(data).to_bytes(4, "little") + data)
    disk.flush(part)
    disk.rename(part, name)
    disk.flush_names()


def newest_whole(disk):
    names = [name for name in disk.names() if name.startswith("step-")]
    steps = {int(name[5:]): name for name in names}
    for step in sorted(steps, reverse=True):
        content = disk.read(steps[step])
        checksum, data = content[:4], content[4:]
        if len(content) >= 4 and zlib.crc32(data).to_bytes(4, "little") == checksum:
            return step, data
    return None


class AsyncSaver:
    def __init__(self, start, write):
        self.start, self.write = start, write
        self.running = None

    def save(self, step: int, tensors: dict[str, torch.Tensor]) -> None:
        self.wait()
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.running = self.start(self.write, step, copies)

    def wait(self) -> None:
        running, self.running = self.running, None
        if running is not None:
            running.result()


def reshard(read, elements: int, old: int, new: int, rank: int, dtype) -> torch.Tensor:
    size, wanted = -(-elements // old), -(-elements // new)
    out = torch.zeros(wanted, dtype=dtype)
    first = rank * wanted
    last = min(first + wanted, elements)
    for file in range(old):
        base = file * size
        start, stop = max(first, base), min(last, base + size)
        if start < stop:
            out[start - first : stop - first] = read(file, start - base, stop - base)
    return out


class Snapshot:
    @staticmethod
    def parts(run):
        return [run.model, run.optimizer, run.schedule, run.loader]

    def __init__(self, run):
        self.torch_state = torch.get_rng_state()
        self.numpy_state = np.random.get_state()
        self.python_state = random.getstate()
        self.states = deepcopy([part.state_dict() for part in self.parts(run)])

    def restore(self, run) -> None:
        states = deepcopy(self.states)
        for part, state in zip(self.parts(run), states):
            part.load_state_dict(state)
        torch.set_rng_state(self.torch_state)
        np.random.set_state(self.numpy_state)
        random.setstate(self.python_state)


def slow_ranks(times: torch.Tensor, factor: float = 1.1) -> list[int]:
    compute = (times[:, :, 1] - times[:, :, 0]).median(dim=1).values
    middle = compute.median()
    deviation = 1.4826 * (compute - middle).abs().median()
    limit = torch.maximum(factor * middle, middle + 5 * deviation)
    return (compute > limit).nonzero()[:, 0].tolist()


class SpikeRule:
    def __init__(self, alpha=0.97, z=6.0, warmup=25, patience=3):
        self.alpha, self.z, self.warmup, self.patience = alpha, z, warmup, patience
        self.taken = self.skipped = 0
        self.mean = self.variance = 0.0

    def __call__(self, loss: float) -> str:
        d = loss - self.mean
        spike = not math.isfinite(loss)
        if not spike and self.taken >= self.warmup:
            least = 0.001 * abs(self.mean)
            spike = d > self.z * max(math.sqrt(self.variance), least)
        if spike:
            self.skipped = (self.skipped + 1) % self.patience
            return "skip" if self.skipped else "back"
        self.skipped = 0
        self.taken += 1
        k = min(self.alpha, 1 - 1 / self.taken)
        self.mean += (1 - k) * d
        self.variance = k * (self.variance + (1 - k) * d * d)
        return "take"


def best_interval(
    save_seconds: float, chips: int, failures: int, chip_hours: float
) -> float:
    if failures == 0:
        return math.inf
    between = chip_hours * 3600 / failures / chips
    if save_seconds >= 2 * between:
        return between
    x = math.sqrt(save_seconds / (2 * between))
    young = math.sqrt(2 * save_seconds * between)
    return young * (1 + x / 3 + x**2 / 9) - save_seconds
