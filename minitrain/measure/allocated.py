"""The most bytes that a call has allocated at any moment, as torch's allocator tells it.

`MemoryLedger` says what the bytes are for, but sees only what an operation reads and writes; the
allocator also knows of buffers inside kernels and under subclasses such as DTensor. On a CPU it is
asked through torch's profiler (a call takes several times as long), on CUDA it counts by itself.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_allocated_bytes(function: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Over what was there before. The call should free what it makes, and nothing older."""
    gc.collect()
    if torch.device(device).type == "cuda":
        return _peak_on_cuda(function, device)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it prints that it starts and stops
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        function()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()  # below 0 where memory is given back
        peak = max(peak, now)
    return peak


def _peak_on_cuda(function: Callable[[], object], device: torch.device | str) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    function()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
