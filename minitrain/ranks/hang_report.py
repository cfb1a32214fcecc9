"""Builds one `RankReport` per rank from the flight recorder, stack dumps and failures."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from minitrain.ranks.errors import RankReport
from minitrain.ranks.flight_recorder import STARTING, WAITING, FlightRecorder
from minitrain.ranks.process import Failure
from minitrain.ranks.source import is_own, is_runtime, quoted

Frame = tuple[str, int, str]  # file, line, function
FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def dump_stacks(folder: Path, pids: dict[int, int], seconds: float = 0.5) -> dict[int, list[Frame]]:
    """Gets the stacks of the ranks `pids`, even if they are stuck in C; innermost last."""
    if not pids or os.name != "posix":
        return {}
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + seconds
    texts, before = {}, None
    while not (texts and all(texts.values()) and texts == before) and time.monotonic() < deadline:
        time.sleep(0.02)
        before, texts = texts, {rank: _read(folder / f"stack-{rank}") for rank in pids}
    return {rank: _frames(text) for rank, text in texts.items()}


def report(
    rank: int,
    recorder: FlightRecorder,
    ended: str | None,
    failed: Failure | None,
    stack: list[Frame] | None,
) -> RankReport:
    """`ended`: "finished", or how the process died; None while it runs."""
    status = recorder.status(rank)
    operation = recorder.words(rank, status.entry) or None
    if failed is not None and not failed.is_consequence:
        return _of_failure(rank, failed, operation)
    if ended == "finished":
        return RankReport(rank, "finished", None, None, "finished")
    waits = status.state == WAITING
    stack = failed.frames if failed is not None else stack  # cut off when another rank was gone
    file, line = _position(status.where if waits else status.seen, stack or [])
    at = f", {quoted(file, line)}" if file else ""
    if ended is not None:
        doing = f"waiting in {operation}" if waits else "at work"
        text = f"{ended}; last seen {doing}{at}"
        return RankReport(rank, "died", operation, line, text, file)
    if waits:
        return RankReport(rank, "waiting", operation, line, f"waiting in {operation}{at}", file)
    if failed is not None:
        return RankReport(
            rank, "waiting", None, line, f"cut off from a rank that is gone{at}", file
        )
    doing = "still starting" if status.state == STARTING else f"still at work{at}"
    return RankReport(rank, "computing", None, line, doing, file)


def _of_failure(rank: int, failed: Failure, operation: str | None) -> RankReport:
    frame = _innermost(failed.frames)
    file, line = (frame[0], frame[1]) if frame else (None, None)
    at = f", {quoted(file, line)}" if file else ""
    said = f"{failed.kind}: {failed.message}".partition("\n")[0] if failed.message else failed.kind
    frames = tuple(_printed(frame) for frame in _shown(failed.frames))
    text = f"in {failed.operation}{at}" if failed.operation else f"raised {said}{at}"
    operation = failed.operation or operation
    return RankReport(rank, "failed", operation, line, text, file, frames)


def _position(seen: str, stack: list[Frame]) -> tuple[str | None, int | None]:
    """The learner's line: from the stack, else the rank's last record, else any line there is."""
    own = [frame for frame in stack if is_own(frame[0])]
    file, _, line = seen.rpartition(":")
    if not own and file:
        return file, int(line)
    frame = _innermost(stack)
    return (frame[0], frame[1]) if frame else (None, None)


def _innermost(frames: Iterable[Frame]) -> Frame | None:
    shown = _shown(frames)
    return shown[-1] if shown else None


def _shown(frames: Iterable[Frame]) -> list[Frame]:
    """The learner's own frames; if there are none, all but the runtime's."""
    frames = list(frames)
    own = [frame for frame in frames if is_own(frame[0])]
    return own or [frame for frame in frames if not is_runtime(frame[0])]


def _printed(frame: Frame) -> str:
    file, line, function = frame
    return f"  {quoted(file, line, f', in {function}')}"


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _frames(dump: str) -> list[Frame]:
    """The stack of the thread that runs the rank, from faulthandler's text (innermost first).

    A forked rank has its parent's frames outside of `run_rank`: they are left out.
    """
    threads = [part for part in dump.split("\n\n") if "in _watch" not in part]
    main = max(threads, key=lambda part: ("in run_rank" in part, len(part)), default="")
    main = main.partition(" in run_rank\n")[0]
    return [(file, int(line), function) for file, line, function in reversed(FRAME.findall(main))]
