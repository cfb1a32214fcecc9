import math
import pickle
import random
import statistics
import zlib

import numpy as np
import torch


def save_whole(disk, step, data):
    """In two writes of the same file, flushed twice."""
    temporary, final = f"tmp-{step}", "step-" + str(step).zfill(8)
    checksum = zlib.crc32(data)
    content = bytes((checksum >> shift) & 255 for shift in (0, 8, 16, 24)) + data
    disk.write(temporary, content)
    disk.flush(temporary)
    disk.flush_names()
    disk.rename(temporary, final)
    disk.flush_names()


def newest_whole(disk):
    found = {}
    for name in disk.names():
        head, _, number = name.partition("-")
        if head == "step" and number.isdigit():
            found[int(number)] = name
    while found:
        step = max(found)
        content = bytes(disk.read(found.pop(step)))
        if len(content) > 3 and int.from_bytes(content[:4], "little") == zlib.crc32(content[4:]):
            return step, content[4:]
    return None


class AsyncSaver:
    """One buffer, used again; the job is a closure."""

    def __init__(self, start, write):
        self._start, self._put, self._room, self._handles = start, write, {}, []

    @torch.no_grad()
    def save(self, step, tensors):
        self.wait()
        for name, tensor in tensors.items():
            kept = self._room.get(name)
            if kept is None or (kept.shape, kept.dtype) != (tensor.shape, tensor.dtype):
                self._room[name] = torch.empty_like(tensor, requires_grad=False)
            self._room[name].copy_(tensor)
        room = {name: self._room[name] for name in tensors}
        self._handles.append(self._start(lambda: self._put(step, room)))

    def wait(self):
        while self._handles:
            self._handles.pop().result()


def reshard(read, elements, old, new, rank, dtype):
    """Walks along the rank's elements, from file to file."""
    size, wanted = math.ceil(elements / old), math.ceil(elements / new)
    place, stop, parts = rank * wanted, min(elements, rank * wanted + wanted), []
    while place < stop:
        file, inside = divmod(place, size)
        count = min(size - inside, stop - place)
        parts.append(read(file, inside, inside + count))
        place += count
    parts.append(torch.zeros(wanted - sum(map(len, parts)), dtype=dtype))
    return torch.cat(parts)


class Snapshot:
    """As bytes, which nobody changes."""

    def __init__(self, run):
        self.names = "model", "optimizer", "schedule", "loader"
        kept = {name: getattr(run, name).state_dict() for name in self.names}
        kept["chance"] = torch.get_rng_state(), np.random.get_state(), random.getstate()
        self.data = pickle.dumps(kept)

    def restore(self, run):
        kept = pickle.loads(self.data)
        for name in reversed(self.names):
            getattr(run, name).load_state_dict(kept[name])
        ours, theirs, pythons = kept["chance"]
        random.setstate(pythons)
        np.random.set_state(theirs)
        torch.set_rng_state(ours)


def slow_ranks(times, factor=1.1):
    own = [
        statistics.median(reached - began for began, reached, _ in steps)
        for steps in times.tolist()
    ]
    middle = statistics.median_low(own)  # as torch.median
    spread = statistics.median_low(abs(seconds - middle) for seconds in own)
    return [
        rank
        for rank, seconds in enumerate(own)
        if seconds > middle * factor and seconds > middle + 5 * 1.4826 * spread
    ]


class SpikeRule:
    def __init__(self, alpha=0.97, z=6.0, warmup=25, patience=3):
        self.options, self.taken, self.mu, self.v, self.row = (
            (alpha, z, warmup, patience),
            0,
            0,
            0,
            0,
        )

    def __call__(self, loss):
        alpha, z, warmup, patience = self.options
        if not math.isnan(loss) and not math.isinf(loss):
            distance = loss - self.mu
            width = max(self.v**0.5, 0.001 * abs(self.mu))
            if self.taken < warmup or distance <= z * width:
                self.taken += 1
                self.row = 0
                k = min(alpha, (self.taken - 1) / self.taken)
                self.mu += (1 - k) * distance
                self.v = k * self.v + k * (1 - k) * distance * distance
                return "take"
        self.row += 1
        if self.row < patience:
            return "skip"
        self.row = 0
        return "back"


def best_interval(save_seconds, chips, failures, chip_hours):
    """The maximum of the exact share, found by golden section."""
    if not failures:
        return math.inf
    mean = 3600 * chip_hours / (failures * chips)
    low, high, ratio = 1e-9, 1.0, (5**0.5 - 1) / 2

    def lost(t):
        whole = save_seconds / mean + t
        return whole + math.log1p(-math.exp(-whole)) - math.log(t)

    for _ in range(100):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, b) if lost(a) < lost(b) else (a, high)
    return low * mean
