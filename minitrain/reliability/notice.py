"""Requests to stop a run: a signal, or a cloud's notice that the machine will be reclaimed.

    SIGINT, SIGTERM, notice ─▶ stop file ─▶ each rank checks after its step, all agree ─▶ save, end

It is a file, because ranks are not the process that the user started. AWS gives two minutes'
notice, Google and Azure half a minute; a save is worthwhile only if it fits into that.
The notice is at an address that only the machine itself can read; Slurm and Kubernetes send
SIGTERM instead; if no signal reaches a rank, as under Ray, use a file that all nodes see
(file:///shared/stop). Imports no torch. Lab: e12.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from minitrain.errors import InputError
from minitrain.reliability.events import EventLog

PATIENCE_SECONDS = 1.0  # torchrun passes one Ctrl-C on twice
AWS = "http://169.254.169.254/latest/meta-data/spot/instance-action"  # 404 until there is one
AWS_TOKEN = "/latest/api/token"
GOOGLE = "http://metadata.google.internal/computeMetadata/v1/instance/preempted"  # TRUE or FALSE
CLOUDS = {"aws": AWS, "google": GOOGLE}
LOOK_SECONDS = 5.0


@contextmanager
def stop_on_signals(path: Path) -> Iterator[None]:
    """Within the block, a signal creates `path`; a second one does not wait for the step to end.

    Does nothing in a thread, such as a worker of Ray Train: signals reach the main thread only.
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
            print("\nstopping after this step, to save; again: stop at once", file=sys.stderr)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def address_of(notice: str) -> str:
    """The address for one of `CLOUDS`; any address, also file:, is returned as is. ValueError for
    anything else."""
    address = urlsplit(CLOUDS.get(notice, notice))
    on_web = address.scheme in ("http", "https") and address.hostname and address.port != 0
    is_file = address.scheme == "file" and not address.netloc and address.path.startswith("/")
    if not (on_web or is_file):
        raise ValueError(
            f"{notice!r} is no http:// or file:/// address: give one, or {' or '.join(CLOUDS)}"
        )
    return notice if is_file else address.geturl()


def noticed_at(url: str, timeout: float = 2.0) -> bool:
    """True if a cloud's address, or a file, announces the machine's end; False if it is missing or
    empty."""
    try:
        return _answer(url, timeout) not in (b"", b"FALSE")
    except (OSError, HTTPException):  # 404 is an OSError, a truncated response the other
        return False


def _answer(url: str, timeout: float) -> bytes:
    """Fetches a token first (IMDSv2): AWS's newer machines answer 401 without one."""
    try:
        return _read(urllib.request.Request(url, headers={"Metadata-Flavor": "Google"}), timeout)
    except urllib.error.HTTPError as error:
        if error.code != 401:
            raise
    ask = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    request = urllib.request.Request(urljoin(url, AWS_TOKEN), headers=ask, method="PUT")
    token = {"X-aws-ec2-metadata-token": _read(request, timeout).decode()}
    return _read(urllib.request.Request(url, headers=token), timeout)


def _read(request: urllib.request.Request, timeout: float) -> bytes:
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.read().strip()


def worth_saving(save_seconds: float, step_seconds: float, notice_seconds: float) -> bool:
    """True if the current step and a save end before the machine does."""
    if min(save_seconds, step_seconds, notice_seconds) < 0:
        raise InputError("seconds of a save, a step and a notice are 0 or more")
    return save_seconds + step_seconds < notice_seconds


@contextmanager
def stop_on_notice(
    stop: Path,
    is_noticed: Callable[[], bool],
    log: EventLog | None = None,
    every: float = LOOK_SECONDS,
) -> Iterator[None]:
    """Within the block, a thread creates `stop` once `is_noticed()`."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(every):
            if is_noticed():
                stop.touch()
                if log is not None:
                    log.write("notice")
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
