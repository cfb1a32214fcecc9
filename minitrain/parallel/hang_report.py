"""From the board, the stack dumps and the failures to one `RankReport` a rank."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from minitrain.parallel.board import WAITING, Board
from minitrain.parallel.rank_errors import RankReport
from minitrain.parallel.source import code, is_own, place
from minitrain.parallel.worker import Failure

Frame = tuple[str, int, str]  # file, line, function
FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
MAIN_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*?(?=\n\n|\Z)", re.DOTALL)
PLUMBING = ("group.py", "worker.py", "launch.py", "board.py", "payload.py")


def dump_stacks(folder: Path, pids: dict[int, int], seconds: float = 0.5) -> dict[int, list[Frame]]:
    """Asks the ranks `pids` for their stacks, also where they are stuck in C; innermost last."""
    if os.name != "posix":
        return {}
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + seconds
    texts: dict[int, str] = {}
    while len(texts) < len(pids) and time.monotonic() < deadline:
        time.sleep(0.01)
        for rank in pids.keys() - texts.keys():
            text = (folder / f"stack-{rank}").read_text(errors="replace")
            if "run_rank" in text:  # the outermost frame of ours, which is written last
                texts[rank] = text
    return {rank: _frames(text) for rank, text in texts.items()}


def report(
    rank: int,
    board: Board,
    ended: str | None,
    failed: Failure | None,
    stack: list[Frame] | None,
) -> RankReport:
    """`ended`: "finished", or how the process died; None while it runs."""
    status = board.status(rank)
    operation = board.words(rank, status.row, status.number) or None
    if failed is not None and not failed.is_consequence:
        return _of_failure(rank, failed, operation)
    if ended == "finished":
        return RankReport(rank, "finished", None, None, "finished")
    waits = status.state == WAITING
    file, line = _position(status.where if waits else status.seen, stack or [])
    at = f", {place(file, line)}: {code(file, line)}" if file else ""
    if ended is not None:
        doing = f"waiting in {operation}" if waits else "at work"
        text = f"{ended}; last seen {doing}{at}"
        return RankReport(rank, "died", operation, line, text, file)
    if waits:
        return RankReport(rank, "waiting", operation, line, f"waiting in {operation}{at}", file)
    return RankReport(rank, "computing", None, line, f"still at work{at}", file)


def _of_failure(rank: int, failed: Failure, operation: str | None) -> RankReport:
    frame = _innermost(failed.frames)
    file, line = (frame[0], frame[1]) if frame else (None, None)
    at = f", {place(file, line)}: {code(file, line)}" if file else ""
    said = f"{failed.kind}: {failed.message}" if failed.message else failed.kind
    lines = tuple(text for frame in _shown(failed.frames) for text in _printed(frame))
    text = f"raised {said}{at}"
    return RankReport(rank, "failed", operation, line, text, file, (*lines, said))


def _position(seen: str, stack: list[Frame]) -> tuple[str | None, int | None]:
    """The learner's line: from the dump just made, else from what the rank had noted."""
    frame = _innermost(stack)
    if frame is not None:
        return frame[0], frame[1]
    file, colon, line = seen.rpartition(":")
    return (file, int(line)) if colon and line.isdigit() else (None, None)


def _innermost(frames: Iterable[Frame]) -> Frame | None:
    shown = _shown(frames)
    return shown[-1] if shown else None


def _shown(frames: Iterable[Frame]) -> list[Frame]:
    """The learner's own frames; where there are none, all but this machinery's."""
    frames = list(frames)
    own = [frame for frame in frames if is_own(frame[0])]
    return own or [frame for frame in frames if not frame[0].endswith(PLUMBING)]


def _printed(frame: Frame) -> list[str]:
    file, line, function = frame
    return [f"  {place(file, line)}, in {function}", f"    {code(file, line)}"]


def _frames(dump: str) -> list[Frame]:
    """faulthandler's text of the thread that runs the rank; it writes the innermost frame first."""
    threads = [text for text in MAIN_THREAD.findall(dump) if "run_rank" in text]
    found = FRAME.findall(threads[0]) if threads else []
    return [(file, int(line), function) for file, line, function in reversed(found)]
