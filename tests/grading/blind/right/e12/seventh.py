# a reader's own answers, from the notebook alone
import math
import random
import zlib
from copy import deepcopy

import numpy as np
import torch


def save_whole(disk, step: int, data: bytes) -> None:
    name = f"step-{step:08d}"
    temporary = ".saving.part"
    disk.write(temporary, zlib.crc32(data).to_bytes(4, "little") + data)
    disk.flush(temporary)
    disk.rename(temporary, name)
    disk.flush_names()


def newest_whole(disk):
    names = [name for name in disk.names() if name.startswith("step-")]
    for name in sorted(names, key=lambda name: int(name[5:]), reverse=True):
        content = disk.read(name)
        checksum, data = content[:4], content[4:]
        if len(checksum) == 4 and zlib.crc32(data).to_bytes(4, "little") == checksum:
            return int(name[5:]), data
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
    first = rank * wanted
    last = min(first + wanted, elements)
    out = torch.zeros(wanted, dtype=dtype)
    for file in range(old):
        base = file * size
        start, stop = max(first, base), min(last, base + size)
        if start < stop:
            out[start - first : stop - first] = read(file, start - base, stop - base)
    return out


class Snapshot:
    def __init__(self, run):
        self.torch_state = torch.get_rng_state()
        self.numpy_state = np.random.get_state()
        self.python_state = random.getstate()
        parts = (run.model, run.optimizer, run.schedule, run.loader)
        self.states = deepcopy([part.state_dict() for part in parts])

    def restore(self, run) -> None:
        parts = (run.model, run.optimizer, run.schedule, run.loader)
        for part, state in zip(parts, self.states):
            part.load_state_dict(deepcopy(state))
        # loading may draw, so the generators come last
        torch.set_rng_state(self.torch_state)
        np.random.set_state(self.numpy_state)
        random.setstate(self.python_state)


def slow_ranks(times: torch.Tensor, factor: float = 1.1) -> list[int]:
    compute = times[:, :, 1] - times[:, :, 0]
    of_rank = compute.median(dim=1).values
    middle = of_rank.median()
    spread = 1.4826 * (of_rank - middle).abs().median()
    limit = torch.maximum(factor * middle, middle + 5 * spread)
    return (of_rank > limit).nonzero()[:, 0].tolist()


class SpikeRule:
    def __init__(self, alpha=0.97, z=6.0, warmup=25, patience=3):
        self.alpha, self.z, self.warmup, self.patience = alpha, z, warmup, patience
        self.taken, self.mean, self.variance = 0, 0.0, 0.0
        self.in_a_row = 0

    def follow(self, loss):
        self.taken += 1
        keep = min(self.alpha, 1 - 1 / self.taken)
        off = loss - self.mean
        self.mean += (1 - keep) * off
        self.variance = keep * (self.variance + (1 - keep) * off * off)

    def __call__(self, loss: float) -> str:
        is_out = not math.isfinite(loss)
        if not is_out and self.taken >= self.warmup:
            scale = max(math.sqrt(self.variance), 0.001 * abs(self.mean))
            is_out = loss - self.mean > self.z * scale
        if not is_out:
            self.in_a_row = 0
            self.follow(loss)
            return "take"
        self.in_a_row += 1
        if self.in_a_row < self.patience:
            return "skip"
        self.in_a_row = 0
        return "back"


def best_interval(
    save_seconds: float, chips: int, failures: int, chip_hours: float
) -> float:
    if failures == 0:
        return math.inf
    between = chip_hours * 3600 / (failures * chips)
    if save_seconds >= 2 * between:
        return between
    x = math.sqrt(save_seconds / (2 * between))
    young = math.sqrt(2 * save_seconds * between)
    return young * (1 + x / 3 + x**2 / 9) - save_seconds
