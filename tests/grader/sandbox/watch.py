"""Follows one run from the grader's side: collects its output, and enforces the totals.

The child cannot be asked to stop; it is watched. Wall-clock, the number of processes, their private
memory, the bytes printed, returned and written each have a limit, and exceeding any of them ends
the run with that cause. Output beyond the limit is discarded, never stored. Processes come from
psutil: all descendants of the zygote belong to the run.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from minitrain.lab.sandbox.limits import Limits
from minitrain.lab.sandbox.zygote import STATUS

LOOK_EVERY = 0.04  # seconds between two counts of processes and memory
LINGER = 2.0  # seconds for the zygote to clear up before the whole sandbox is killed
KEPT_OUTPUT = 16 * 1024  # bytes


@dataclass
class Ending:
    """A run's end: its reason, and its output.

    cause: None where it exited by itself; else the exceeded limit (timeout, memory, processes,
    output, reply, disk), or "died", where the zygote died too.
    """

    reply: bytearray = field(default_factory=bytearray)
    output: bytearray = field(default_factory=bytearray)  # the last KEPT_OUTPUT bytes of it
    printed_bytes: int = 0
    status: int | None = None  # as os.waitpid gives it; None: the zygote itself did not answer
    cause: str | None = None


class Watch:
    """One run under its limits, until all its processes are gone.

    control: the socket to the zygote. reply, output: the pipes that the child writes to.
    folder: where it may write files, or None where the kernel limits that folder's size.
    """

    def __init__(
        self,
        control: socket.socket,
        reply: int,
        output: int,
        zygote: psutil.Process,
        limits: Limits,
        folder: Path | None,
    ) -> None:
        self.control, self.reply, self.output = control, reply, output
        self.zygote, self.limits, self.folder = zygote, limits, folder
        self.ending = Ending()

    def follow(self, seconds: float) -> Ending:
        """Returns when the zygote reports that nothing is left of the run, or fails to in time."""
        ending, deadline = self.ending, time.monotonic() + seconds
        look, stop_by = 0.0, float("inf")
        with selectors.DefaultSelector() as selector:
            for source in (self.control, self.reply, self.output):
                selector.register(source, selectors.EVENT_READ)
            while ending.status is None and ending.cause != "died":
                self._take(selector, LOOK_EVERY)
                now = time.monotonic()
                if now > stop_by:
                    break
                if ending.cause is None and ending.status is None and now > look:
                    ending.cause, look = self._excess(now > deadline), now + LOOK_EVERY
                    stop_by = self._stop(now) if ending.cause else stop_by
            while ending.status is not None and self._take(selector, 0.1):
                pass  # drains the pipes
        return ending

    def _stop(self, now: float) -> float:
        """Asks the zygote to end the run; returns the deadline for that."""
        with suppress(OSError):
            self.control.send(b"K")
        return now + LINGER

    def _take(self, selector: selectors.BaseSelector, seconds: float) -> bool:
        """Reads available data within `seconds`; False if nothing came, or all is closed."""
        if not selector.get_map():
            return False
        ready = [key.fileobj for key, _ in selector.select(seconds)]
        for source in ready:
            if source is self.control:
                self._read_status()
                selector.unregister(source)
            elif not self._read(int(source)):  # type: ignore[arg-type]
                selector.unregister(source)
        return bool(ready)

    def _read_status(self) -> None:
        with suppress(ConnectionError):
            message = self.control.recv(STATUS.size)
            if len(message) == STATUS.size:
                (self.ending.status,) = STATUS.unpack(message)
                return
        self.ending.cause = self.ending.cause or "died"

    def _read(self, source: int) -> bool:
        data, ending = os.read(source, 1 << 18), self.ending
        if source == self.reply:
            ending.reply += data if ending.cause is None else b""
        else:
            ending.printed_bytes += len(data)
            ending.output += data
            del ending.output[:-KEPT_OUTPUT]
        return bool(data)

    def _excess(self, is_late: bool) -> str | None:
        family, most = family_of(self.zygote), self.limits.memory_bytes
        excess = {
            "timeout": is_late,
            "output": self.ending.printed_bytes > self.limits.output_bytes,
            "reply": len(self.ending.reply) > self.limits.reply_bytes,
            "processes": len(family) > self.limits.processes,
            "memory": memory_of(family, most) > most,
            "disk": self.folder is not None and _size(self.folder) > self.limits.disk_bytes,
        }
        return next((cause for cause, is_over in excess.items() if is_over), None)


def _size(folder: Path) -> int:
    """Bytes of all files in a folder that may change concurrently."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def family_of(process: psutil.Process) -> list[psutil.Process]:
    """All its descendants; empty when it is gone."""
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def kill_family(process: psutil.Process) -> None:
    """Freezes, then kills: a stopped process cannot fork while its siblings are found."""
    deadline = time.monotonic() + 3
    found: dict[int, psutil.Process] = {}
    while time.monotonic() < deadline:
        new = [p for p in [process, *family_of(process)] if p.pid not in found]
        for member in new:
            found[member.pid] = member
            with suppress(psutil.Error):
                member.suspend()
        if not new:
            break
    for member in found.values():
        with suppress(psutil.Error):
            member.kill()


def memory_of(processes: list[psutil.Process], limit: int) -> int:
    """Their total bytes; exact only where a quick estimate exceeds `limit`.

    The estimate counts a shared page once per process.
    """
    estimate = sum(map(private_bytes, processes)) + nameless_bytes(processes)
    if estimate <= limit:
        return estimate
    return sum(map(proportional_bytes, processes)) + nameless_bytes(processes)


def private_bytes(process: psutil.Process) -> int:
    """Memory not backed by a file on disk: private and shared."""
    try:
        if sys.platform != "linux":
            return process.memory_info().rss
        return _sum_of(process, "status", ("RssAnon:", "RssShmem:"))
    except (psutil.Error, OSError, ValueError):
        return 0  # it has just exited


def proportional_bytes(process: psutil.Process) -> int:
    """Like `private_bytes`, with a page that n processes share counted as 1/n of it (Linux)."""
    try:
        return _sum_of(process, "smaps_rollup", ("Pss_Anon:", "Pss_Shmem:"))
    except (OSError, ValueError):
        return private_bytes(process)


def _sum_of(process: psutil.Process, file: str, names: tuple[str, ...]) -> int:
    """The sum of these lines of a file of /proc, which are in KiB."""
    with open(f"/proc/{process.pid}/{file}") as lines:
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(names))


def nameless_bytes(processes: list[psutil.Process]) -> int:
    """Bytes of files in memory that they hold open (memfd_create), which appear in no folder."""
    found: dict[int, int] = {}
    for process in processes:
        folder = Path(f"/proc/{process.pid}/fd")
        with suppress(OSError):
            for link in folder.iterdir():
                with suppress(OSError):
                    if os.readlink(link).startswith("/memfd:"):
                        status = link.stat()
                        found[status.st_ino] = 512 * status.st_blocks
    return sum(found.values())
