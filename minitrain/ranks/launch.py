"""`launch(fn, *args, ranks=4)`: runs `fn(group, *args)`, defined in a cell, on N ranks.

Each rank is a process forked from a server that has torch imported: 4 ranks in about 0.1 s, where
torchrun takes 6 s; the first call starts the server (2 s; `prepare` does so ahead). There is never
a silent hang: a deadlock is reported as soon as it is certain, and at the deadline the report says
which operation each rank is waiting in, and at which line.

    results = launch(lambda group: group.all_reduce(torch.ones(2)), ranks=2)   # [2, 2] from both

Under torchrun (or srun, with RANK and WORLD_SIZE set) the same call runs in place: see in_place.py.
Lab: e00_ranks_and_collectives.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from math import isfinite
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import torch

from minitrain.errors import InputError, check_whole, unknown_name
from minitrain.measure.clock import usable_cores
from minitrain.measure.traffic import Trace
from minitrain.network.fabric import Fabric, find_fabric
from minitrain.ranks import in_place
from minitrain.ranks.crew import Crew, context, short_paths, supervise
from minitrain.ranks.errors import RanksInterrupted
from minitrain.ranks.payload import pack_call, plain_loads
from minitrain.ranks.process import Carrier, Task
from minitrain.ranks.source import cells

MOST_RANKS = 64
RANK_BYTES = 250 * 2**20  # free memory required per rank; an idle one takes 35 MB


class Results(list):
    """The ranks' return values in order, with their traces and the time the launch took."""

    def __init__(
        self,
        values: Sequence[Any],
        traces: Sequence[Trace] = (),
        seconds: float = 0.0,
        emulated_seconds: float | None = None,
        fabric: str | None = None,
    ) -> None:
        super().__init__(values)
        self.traces, self.seconds = list(traces), seconds
        self.emulated_seconds, self.fabric = emulated_seconds, fabric

    def __repr__(self) -> str:
        label = f"  # emulated: {self.fabric}" if self.fabric else ""
        return super().__repr__() + label


def launch(
    fn: Callable,
    *args: Any,
    ranks: int = 4,
    timeout: float = 60.0,
    fabric: str | Fabric | None = None,
    start_method: str | None = None,
    quiet: bool = False,
    carrier: Carrier | None = None,
) -> Results:
    """Calls `fn(group, *args)` on `ranks` processes and returns their results as plain CPU data.

    timeout: seconds until the launch is ended, with a report of where each rank is. In any case no
    operation waits longer than 10 minutes: the only limit under torchrun, which has no supervisor.
    fabric: the name of an emulated network, or a Fabric; then the clock of each rank is logical.
    start_method: "fork" is faster, for a parent that has never run an operation of torch.
    carrier: transports messages in place of torch; with it, and "fork", results are plain values.
    The globals of a cell that `fn`, or a function that it calls, mentions by name are sent with it;
    those looked up at run time (`globals()["x"]`, `eval`) are not.
    Rank r starts with the random seed r, and with as many threads as there are cores / ranks.
    """
    _check(fn, ranks, timeout, start_method)
    emulated = None if fabric is None else find_fabric(fabric)
    if in_place.rank_and_world_size() is not None:
        return _results(*in_place.run(fn, args, ranks, emulated), emulated)
    task = Task(
        ranks=ranks,
        threads=1 if emulated else max(1, usable_cores() // ranks),  # logical clocks count one
        on_gpus=emulated is None and 0 < ranks <= torch.cuda.device_count(),
        call=pack_call(fn, args, emulated),
        cells=cells(),
        environment=dict(os.environ),
    )
    _check_memory(ranks)
    folder = Path(tempfile.mkdtemp(prefix="minitrain-"))
    crew = Crew(task, folder, start_method, quiet, carrier)
    begun = time.perf_counter()
    try:
        crew.start()
        supervise(crew, timeout)
    except KeyboardInterrupt:
        raise RanksInterrupted(crew.reports()) from None
    finally:
        crew.end()
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.perf_counter() - begun
    finished = [crew.finished[rank] for rank in range(ranks)]
    loads = pickle.loads if carrier is None else plain_loads
    answers = [(loads(data), trace, clock) for data, trace, clock in finished]
    return _results(answers, seconds, emulated)


def prepare(*modules: str) -> None:
    """Starts the server that ranks are forked from, in the background, before it is needed.

    `modules`: imported by it besides torch, so that no rank has to: "minitrain.parallel.ddp".
    """
    if os.name == "posix" and in_place.rank_and_world_size() is None:
        context(None, modules)
        with short_paths():
            forkserver.ensure_running()


def _results(
    answers: Sequence[tuple[Any, dict, float]], seconds: float, fabric: Fabric | None
) -> Results:
    """Collects each rank's value, trace and clock."""
    values, traces, clocks = zip(*answers)
    traces = [Trace.from_dict(trace) for trace in traces]
    if fabric is None:
        return Results(values, traces, seconds)
    return Results(values, traces, seconds, max(clocks), fabric.name)


def _check(fn: Callable, ranks: int, timeout: float, start_method: str | None) -> None:
    if not callable(fn):
        raise InputError(f"launch calls a function on each rank; {fn!r} cannot be called")
    check_whole("ranks", ranks)
    if not isinstance(timeout, (int, float)) or not isfinite(timeout) or timeout <= 0:
        raise InputError(f"timeout={timeout!r}: give the seconds after which a hang is reported")
    if start_method not in (None, *multiprocessing.get_all_start_methods()):
        known = multiprocessing.get_all_start_methods()
        raise unknown_name("start_method", start_method, known)


def _check_memory(ranks: int) -> None:
    free = psutil.virtual_memory().available
    most = max(1, min(MOST_RANKS, free // RANK_BYTES))
    if ranks > most:
        raise InputError(
            f"{ranks} ranks are more than this machine can hold: {free / 2**30:.1f} GiB are free, "
            f"and a rank takes 0.25; use at most {most}"
        )
