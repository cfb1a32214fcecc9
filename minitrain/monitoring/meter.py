"""Per-step measurements of a rank: parts of the step, waits, bytes, memory, hardware.

    data ▌ forward ▌ backward ····waits···· ▌ average ··waits·· ▌ optimizer ▌ between
         └──────────── compute ─────────────┴── minus the waits: "communication" ──┘

Time is that of the group's clock: real, or the logical one of an emulated fabric. A rank that waits
for others does not compute, so slow ranks stand out (stragglers.py). With NCCL the GPU waits, not
the rank, so computing and waiting cannot be separated without timing the GPU. Parts and
communication add up to the step. Slowly changing values are read once a second. Cost, with the line
in metrics.jsonl: 30 µs in a loop of its own, 170 µs after a step, which evicts the caches (medians
on a busy core of a server's CPU): 1% of a step of 18 ms.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch

from minitrain.errors import InputError
from minitrain.measure.parts import Parts, Span
from minitrain.measure.traffic import Interval, Trace, intersection, length, union
from minitrain.monitoring.hardware import Sensor
from minitrain.monitoring.metrics import COMMUNICATION
from minitrain.reliability.checkpoint.folder import checkpoints
from minitrain.reliability.spikes import Running
from minitrain.training.loop import StepRecord
from minitrain.training.report import Sample

COMPUTED = ("forward", "backward", "average", "optimizer", "step")
MINUTE = 60.0
APART = 0.5  # minimum interval between two reads of one clock


@dataclass
class Highest:
    """The highest deviation of a series in the last minute: a scrape a minute misses none."""

    running: Running = field(default_factory=Running)
    recent: deque[tuple[float, float]] = field(default_factory=deque)  # falling from left to right
    warmup: int = 25  # ZClip's, in values

    def add(self, value: float, now: float) -> float | None:
        """The highest deviation; None until the mean is established."""
        while self.recent and self.recent[0][0] < now - MINUTE:
            self.recent.popleft()
        if math.isfinite(value):
            if self.running.count >= self.warmup:
                self._note(self.running.z(value), now)
            self.running.add(value)
        return self.recent[0][1] if self.recent else None

    def _note(self, z: float, now: float) -> None:
        while self.recent and self.recent[-1][1] <= z:
            self.recent.pop()
        self.recent.append((now, z))


class Meter:
    """`Reporter(measure=Meter(parts))`, where `parts.begin` was passed to `train`.

    `trace`: of the rank's group. `sensor`: of its chip. `checkpoints_in`: the run's folder, saved
    to every `interval` seconds. `stalled`: seconds so far in which saves blocked the run.
    """

    def __init__(
        self,
        parts: Parts,
        trace: Trace | None = None,
        device: torch.device | str = "cpu",
        sensor: Sensor | None = None,
        checkpoints_in: Path | None = None,
        interval: float | None = None,
        stalled: Callable[[], float] = lambda: 0.0,
    ) -> None:
        if trace and trace.clock and abs(parts.now() - trace.clock.now()) > APART:
            raise InputError("the parts and the group have different clocks: give Parts(group.now)")
        self.parts, self.trace, self.device = parts, trace, torch.device(device)
        self.sensor, self.folder, self.interval = sensor, checkpoints_in, interval
        self.stalled, self.stall_seconds = stalled, stalled()
        self.process, self.began = psutil.Process(), time.time()
        self.loss_z, self.norm_z = Highest(), Highest()
        self.seen = len(trace.ops) if trace else 0
        self.busy = self.elapsed = 0.0  # since the sensor was last read
        self.next_look = -math.inf
        self.spans, self.ops = parts.take(), []  # of the last step

    def __call__(self, record: StepRecord) -> Sample:
        spans, now = self.parts.take(), time.monotonic()
        self.spans = spans
        waits, sent = self._communication()
        parts = split_by_part(spans, waits)
        step_seconds = spans[-1].end - spans[0].start
        if not any(name in parts for name in COMPUTED):
            raise InputError("no part of the step was timed: give train(begin=parts.begin)")
        compute = sum(parts.get(name, 0.0) for name in COMPUTED)
        self.busy, self.elapsed = self.busy + compute, self.elapsed + step_seconds
        stall, self.stall_seconds = self.stall_seconds, self.stalled()
        sample = {
            "step_seconds": round(step_seconds, 7),
            "compute_seconds": round(compute, 7),
            "data_seconds": round(parts.get("data", 0.0), 7),
            "exposed_seconds": round(parts.get(COMMUNICATION, 0.0), 7),
            "sent_bytes": sent,
            "checkpoint_stall_seconds": round(self.stall_seconds - stall, 7),
            "parts": {name: round(seconds, 7) for name, seconds in parts.items()},
        }
        for name, highest, value in (
            ("loss_z", self.loss_z, record.loss),
            ("grad_norm_z", self.norm_z, record.grad_norm),
        ):
            z = highest.add(value, now)
            if z is not None:
                sample[name] = round(z, 3)
        if now >= self.next_look:
            self.next_look = now + 1.0
            sample |= self._look()
        return sample

    def _communication(self) -> tuple[list[Interval], int]:
        """Intervals in which the rank waited for others since the last step, and bytes it sent."""
        if self.trace is None:
            return [], 0
        self.ops, self.seen = self.trace.ops[self.seen :], len(self.trace.ops)
        waits = union((op.waited, op.done) for op in self.ops if op.done is not None)
        return waits, sum(op.sent_bytes for op in self.ops)

    def _look(self) -> Sample:
        """Reads the slowly changing values."""
        found: Sample = {"memory_bytes": self._memory()}
        if self.interval is not None:
            found["checkpoint_interval_seconds"] = self.interval
            found["last_checkpoint_time"] = self._last_checkpoint()
        if self.sensor is not None and self.elapsed > 0:
            found |= self.sensor.read(min(1.0, self.busy / self.elapsed), self.elapsed)
            self.busy = self.elapsed = 0.0
        return found

    def _memory(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return self.process.memory_info().rss

    def _last_checkpoint(self) -> float:
        """Time of the newest checkpoint of this run or of the one it resumes; the run's start if
        there is none."""
        saved = checkpoints(self.folder) if self.folder else []
        try:
            return max(saved[-1].stat().st_mtime, self.began) if saved else self.began
        except FileNotFoundError:  # replaced by a newer one just now
            return self.began


def split_by_part(spans: list[Span], waits: list[Interval]) -> dict[str, float]:
    """Seconds per part: waits are subtracted from the parts, and summed as "communication"."""
    seconds: dict[str, float] = {}
    waited = 0.0
    for name, start, end in spans:
        lost = length(intersection([(start, end)], waits)) if waits and end > start else 0.0
        seconds[name] = seconds.get(name, 0.0) + (end - start) - lost
        waited += lost
    if waited:
        seconds[COMMUNICATION] = waited
    return seconds
