"""Requests to stop a run: SIGINT (Ctrl-C) or SIGTERM to any of its processes.

    signal ─▶ a file comes to exist ─▶ each rank looks after its step, and all agree ─▶ save, end

A file, because ranks are other processes than the one that a person started. Imports no torch.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_SECONDS = 1.0  # torchrun passes one Ctrl-C on twice


@contextmanager
def stop_on_signals(path: Path) -> Iterator[None]:
    """Within the block, a signal makes `path`; a second one does not wait for the step's end.

    In a thread, such as a worker's of Ray Train, nothing: signals are the main thread's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[float] = []

    def ask(number: int, frame: object) -> None:
        if asked and time.monotonic() - asked[0] > PATIENCE_SECONDS:
            raise KeyboardInterrupt
        if not asked:
            asked.append(time.monotonic())
            path.touch()
            print("\nstopping after this step, to save; once more: at once", file=sys.stderr)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
