"""Reliable timings: warmed up, repeated, interleaved, and with their spread.

A single time is noise: the first call pays for allocation, and another program may hold a core.
So `timing` gives the median of many calls, and `compare` interleaves its contenders (A B B A …), so
that a slowdown of the machine affects both, and neither always runs right after the other.
`matmul_peak` and `copy_bandwidth` measure the two roofs of the roofline (Williams et al. 2009):
seconds >= max(FLOPs / peak, bytes / bandwidth).
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from minitrain.errors import InputError
from minitrain.words import seconds_text


@dataclass(frozen=True)
class Timing:
    """The seconds of each repeat, in the order they were measured."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range over the median: at 0.05 half the repeats lie within 5%."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median if self.median > 0 else 0.0

    def __repr__(self) -> str:
        return f"{seconds_text(self.median)} ± {self.spread / 2:.0%} ({len(self.seconds)} repeats)"


def to_time_of_day(now: Callable[[], float], looks: int = 10) -> float:
    """Seconds to add to `now()` for the machine's time of day, which its processes share. A process
    may lose its core between reading the two clocks, so the closest pair of readings counts."""
    taken = [(now(), time.time(), now()) for _ in range(looks)]
    before, at, after = min(taken, key=lambda look: look[2] - look[0])
    return at - (before + after) / 2


@dataclass(frozen=True)
class Comparison:
    """Timings of several contenders, measured alternately."""

    timings: dict[str, Timing]

    def ratio(self, ours: str, peer: str) -> float:
        """Median time of `ours` over that of `peer`: above 1, ours loses."""
        return self.timings[ours].median / self.timings[peer].median

    def ratio_spread(self, ours: str, peer: str) -> float:
        """Interquartile range of the ratio, repeat by repeat, over its median.

        Adjacent runs slow down together, so this is the uncertainty of `ratio`; the spread of
        either time alone says more about the other programs on the machine.
        """
        pairs = zip(self.timings[ours].seconds, self.timings[peer].seconds)
        return Timing(tuple(a / b for a, b in pairs)).spread

    def __repr__(self) -> str:
        first = next(iter(self.timings))
        lines = [
            f"{name:<24} {timing!r:<32} {self.ratio(name, first):6.2f} x {first}"
            for name, timing in self.timings.items()
        ]
        return "\n".join(lines)


def synchronize(device: torch.device | str | None = None) -> None:
    """Waits for the kernels in flight: a GPU runs behind Python, a CPU does not."""
    if torch.cuda.is_available() and torch.device(device or "cuda").type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(function: Callable[[], Any]) -> float:
    """Wall-clock seconds of one call, kernels included."""
    synchronize()
    start = time.perf_counter()
    function()
    synchronize()
    return time.perf_counter() - start


def compare(
    functions: Mapping[str, Callable[[], Any]],
    repeats: int = 11,
    warmup: int = 2,
    before: Callable[[], Any] | None = None,
) -> Comparison:
    """Times each function `repeats` times, alternating: A B C C B A …, after `warmup` such rounds.

    `before` is called before each call, untimed: a barrier, if ranks measure together.
    """
    if repeats < 1 or warmup < 0 or not functions:
        raise InputError(
            f"compare got {len(functions)} functions, repeats={repeats}, warmup={warmup}; "
            "it needs at least one function and one repeat: try repeats=11, warmup=2"
        )
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for repeat in range(-warmup, repeats):
        for name in alternating(functions, repeat):
            if before is not None:
                before()
            took = seconds_of(functions[name])
            if repeat >= 0:
                seconds[name].append(took)
    return Comparison({name: Timing(tuple(values)) for name, values in seconds.items()})


def alternating(names: Iterable[str], repeat: int) -> list[str]:
    """Forward order in even repeats, reverse in odd ones, since the caches depend on the order."""
    return list(names)[:: -1 if repeat % 2 else 1]


def timing(function: Callable[[], Any], repeats: int = 11, warmup: int = 2) -> Timing:
    """The timing of one function, warmed up."""
    return compare({"it": function}, repeats, warmup).timings["it"]


def median_seconds(function: Callable[[], Any], repeats: int = 11, warmup: int = 2) -> float:
    """The median of `repeats` warmed-up calls."""
    return timing(function, repeats, warmup).median


def usable_cores() -> int:
    """The cores that this process may run on; a container or taskset may restrict them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Runs the block with `count` torch threads (None: unchanged), then restores the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield count or before
    finally:
        torch.set_num_threads(before)


def matmul_peak(
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    threads: int | None = None,
) -> float:
    """FLOP/s of the fastest square matmul on this device: the denominator of MFU.

    The best of several sizes and repeats, measured once per process for each set of arguments:
    the peak is a property of the machine, and slower repeats are due to other programs.
    """
    return _matmul_peak(dtype, str(device), threads or torch.get_num_threads())


@lru_cache
def _matmul_peak(dtype: torch.dtype, device: str, count: int) -> float:
    sizes = (2048, 4096, 8192) if torch.device(device).type == "cuda" else (256, 512, 1024)
    with threads(count):
        return max(_matmul_rate(size, dtype, device) for size in sizes)


def _matmul_rate(size: int, dtype: torch.dtype, device: str) -> float:
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, dtype=dtype, device=device)
    calls = max(1, math.ceil(2**28 / size**3))  # small ones in batches, for the clock's sake

    def run() -> None:
        for _ in range(calls):
            torch.mm(a, b, out=out)

    return calls * 2 * size**3 / timing(run, repeats=7, warmup=2).best  # 2 n³: multiply and add


def copy_bandwidth(device: torch.device | str = "cpu", megabytes: int = 128) -> float:
    """Memory bandwidth in bytes/s of a large copy: each byte is read once and written once."""
    return _copy_bandwidth(str(device), megabytes, torch.get_num_threads())


@lru_cache
def _copy_bandwidth(device: str, megabytes: int, count: int) -> float:
    source = torch.zeros(megabytes * 2**20, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    with threads(count):
        best = timing(lambda: target.copy_(source), repeats=7, warmup=2).best
    return 2 * source.numel() / best
