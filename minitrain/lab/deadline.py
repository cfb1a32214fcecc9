"""A deadline for the grader's own code, where it works on data that a learner may have invented."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from minitrain.lab.expect import CheckFailed


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """CheckFailed once the time is up; only in the main thread, and not on Windows."""
    is_main = threading.current_thread() is threading.main_thread()
    if seconds is None or not is_main or not hasattr(signal, "SIGALRM"):
        yield
        return

    def late(*_: object) -> NoReturn:
        raise CheckFailed(
            f"it took the check more than {seconds:g} s: are the numbers of this size?"
        )

    handler = signal.signal(signal.SIGALRM, late)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)  # another's, such as pytest's
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left, interval)
