"""One step for Perfetto and chrome://tracing: each rank's work and communication.

    trace-step-20.json     rank 0  compute        ▌data▌ forward ▌  backward  ▌avg▌opt▌
                                   communication            ▌all_reduce▌all_reduce▌
                                   waits                                   ▌····▌
Open it at https://ui.perfetto.dev (the file stays on your machine). Chrome's trace event format: a
complete event ("X") has a start and a duration in µs; a process is a rank, a thread a row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from minitrain.errors import check_whole
from minitrain.measure.clock import to_time_of_day
from minitrain.measure.parts import Span
from minitrain.measure.traffic import Op
from minitrain.monitoring.meter import Meter
from minitrain.paths import write_atomically
from minitrain.ranks.group import Group
from minitrain.ranks.in_place import gather_objects
from minitrain.training.loop import StepRecord

ROWS = ("compute", "communication", "waits for others")


def trace_files(folder: str | os.PathLike) -> list[Path]:
    return sorted(
        Path(folder).glob("trace-step-*.json"), key=lambda path: int(path.stem.split("-")[-1])
    )


def events(
    rank: int, spans: Sequence[Span], ops: Sequence[Op], emulated: bool = False, shift: float = 0.0
) -> list[dict[str, Any]]:
    """The events of one rank; `shift` seconds align its clock with the other ranks'."""
    name = f"rank {rank}" + (" (emulated)" if emulated else "")
    of_rank = {"ph": "M", "pid": rank}
    found: list[dict[str, Any]] = [
        {**of_rank, "name": "process_name", "args": {"name": name}},
        {**of_rank, "name": "process_sort_index", "args": {"sort_index": rank}},
        *(
            {**of_rank, "name": "thread_name", "tid": row, "args": {"name": words}}
            for row, words in enumerate(ROWS)
        ),
    ]

    def add(row: int, name: str, start: float, end: float, **details: Any) -> None:
        begin, length = max(0.0, 1e6 * (start + shift)), 1e6 * (end - start)
        place = {"ph": "X", "pid": rank, "tid": row, "ts": round(begin, 3), "dur": round(length, 3)}
        found.append({"name": name, "cat": ROWS[row], **place, "args": details})

    for span in spans:
        if span.end > span.start:
            add(0, span.name, span.start, span.end)
    for op in ops:
        if op.done is not None and op.waited is not None:
            about = {"payload_bytes": op.payload_bytes, "sent_bytes": op.sent_bytes}
            add(1, op.kind, op.issued, op.end, ranks=op.ranks, **about)
            if op.done > op.waited:
                add(2, f"{op.kind} ends", op.waited, op.done)
    return found


class StepTracer:
    """A callback for `train`, on every rank, after the `Reporter` that uses `meter`: writes step
    `at` to `folder`/trace-step-N.json."""

    def __init__(
        self, folder: str | os.PathLike, at: int, meter: Meter, group: Group | None = None
    ) -> None:
        check_whole("the step to trace", at)
        self.folder, self.at, self.meter, self.group = Path(folder), at, meter, group

    def __call__(self, record: StepRecord) -> None:
        if record.step != self.at:
            return
        group, meter = self.group, self.meter
        emulated = group is not None and group.clock.emulated
        shift = clock_shift(group, meter.parts.now, meter.spans[0].start)
        rank = group.rank if group else 0
        own = events(rank, meter.spans, meter.ops, emulated, shift)
        everyone = gather_objects(group, own) if group else [own]
        if rank == 0:
            text = {"traceEvents": list(chain(*everyone)), "displayTimeUnit": "ms"}
            write_atomically(self.folder / f"trace-step-{self.at}.json", json.dumps(text))


def clock_shift(group: Group | None, now: Callable[[], float], start: float) -> float:
    """Seconds to add to this rank's clock so that the first rank's `start` is 0 on all; clocks of
    several machines still differ by NTP's error."""
    if group is None:
        return -start
    to_epoch = 0.0 if group.clock.emulated else to_time_of_day(now)
    first = torch.tensor([start + to_epoch], dtype=torch.float64, device=group.device)
    return to_epoch - group.all_reduce(first, op="min").item()
