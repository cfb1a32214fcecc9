"""The processes of one launch, as the launching process sees them: start, listen, report, end.

`Crew` holds them; `supervise` listens until all have returned, or raises when one cannot. They
are forked from Python's forkserver, which has torch imported but has never run an operation (a
process that has run one cannot be forked: OpenMP's threads do not survive it).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any

from minitrain.errors import InputError
from minitrain.ranks.errors import (
    DeadlineError,
    DeadlockError,
    MismatchError,
    RankDied,
    RankError,
    RankInputError,
    RankReport,
    ranks_text,
)
from minitrain.ranks.flight_recorder import COMPUTING, STARTING, FlightRecorder, stuck
from minitrain.ranks.hang_report import dump_stacks, report
from minitrain.ranks.payload import plain_loads
from minitrain.ranks.process import HOME, Carrier, Failure, Task, end_group, enter, run_rank
from minitrain.words import signal_text

PRELOADED = [
    "torch",
    "torch._dynamo",  # a process's first optimizer imports it, which takes more than a second
    "minitrain.ranks.launch",
]
LAST = "minitrain.ranks.server"  # records how old the sources of loaded modules are at that time
GLANCE_SECONDS = 0.1  # between two checks of who waits for whom
GRACE_SECONDS = 0.5  # for the other ranks, after one has failed
EXIT_SECONDS = 1.0  # for the exit code of a rank that has gone


def context(start_method: str | None, preload: Sequence[str] = ()) -> Any:
    """multiprocessing's context; the forkserver starts at first use, or by `prepare`.

    `preload`: modules that the server imports besides torch, once, for all later ranks.
    """
    name = start_method or ("spawn" if os.name == "nt" else "forkserver")
    chosen = multiprocessing.get_context(name)
    if name == "forkserver":
        chosen.set_forkserver_preload([*PRELOADED, *preload, LAST])
    return chosen


@contextlib.contextmanager
def short_paths() -> Iterator[None]:
    """The forkserver listens on a socket in the temporary folder, whose path the kernel limits."""
    try:
        yield
    except OSError as error:
        if "AF_UNIX" not in str(error):
            raise
        folder = tempfile.gettempdir()
        words = f"{folder} is too long a path for the sockets of ranks: set TMPDIR to a shorter one"
        raise InputError(f"{words}, such as /tmp, and start again") from None


class Crew:
    """The ranks of one launch: `finished`, `failed` or `died`; the others are still running."""

    def __init__(
        self,
        task: Task,
        folder: Path,
        start_method: str | None,
        quiet: bool,
        carrier: Carrier | None = None,
    ) -> None:
        self.count, self.folder, self.quiet, self.carrier = task.ranks, folder, quiet, carrier
        self.recorder = FlightRecorder.create(folder / "flight-recorder", task.ranks)
        (folder / "task").write_bytes(pickle.dumps(task))
        self.processes: list[Any] = []
        self.connections: dict[int, Any] = {}
        self.finished: dict[int, tuple] = {}
        self.failed: dict[int, Failure] = {}
        self.died: dict[int, str] = {}
        self.events: list[int] = []  # ranks that failed or died, in order
        self._context = context(start_method)

    def start(self) -> None:
        """Starts every rank; none imports the caller's main module, so a script needs no guard."""
        pipes = [self._context.Pipe() for _ in range(self.count)]
        forked = self._context.get_start_method() == "fork"
        self.connections = {rank: ours for rank, (ours, _) in enumerate(pipes)}
        with _main_hidden(), contextlib.ExitStack() as handed_over:
            for _, theirs in pipes:
                handed_over.callback(theirs.close)
            for rank, (_, theirs) in enumerate(pipes):
                others = [end for pipe in pipes for end in pipe if end is not theirs]
                args = (theirs, str(self.folder), rank)
                if forked:
                    target, args = run_rank, (*args, others, self.carrier)
                else:
                    target, args = enter, (HOME, *args)
                process = self._context.Process(target=target, args=args)
                self.processes.append(process)
                with short_paths():
                    process.start()
        if self.carrier is not None:
            self.carrier.start()

    @property
    def ended(self) -> set[int]:
        return self.finished.keys() | self.failed.keys() | self.died.keys()

    def listen(self, seconds: float) -> None:
        """Receives the ranks' messages for up to `seconds`; returns at the first one."""
        living = set(range(self.count)) - self.ended
        sources = {self.connections[rank]: rank for rank in living if rank in self.connections}
        sentinels = {p.sentinel: rank for rank, p in enumerate(self.processes) if rank in living}
        ready = wait([*sources, *sentinels], seconds)
        for source in ready:
            if source in sources:
                self._take(sources[source])
        for source in ready:
            rank = sentinels.get(source)
            if rank is not None:
                while self._take(rank):  # its last messages
                    pass
                if rank not in self.ended:
                    self.died[rank] = _how_it_died(self.processes[rank])
                    self.events.append(rank)

    def settle(self, seconds: float) -> None:
        """After the first failure, gives the other ranks time to fail, wait or end as well."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            busy = [r for r in set(range(self.count)) - self.ended
                    if self.recorder.status(r).state in (STARTING, COMPUTING)]  # fmt: skip
            if not busy and self.causes:
                break
            self.listen(min(left, 0.02))

    @property
    def causes(self) -> list[int]:
        """The ranks that failed on their own, in order."""
        return [r for r in self.events if r in self.died or not self.failed[r].is_consequence]

    def said(self, rank: int) -> str:
        """The error message of a rank that failed or died."""
        return self.died.get(rank) or self.failed[rank].message

    def reports(self) -> tuple[RankReport, ...]:
        """One report per rank: its current state."""
        running = {r: p.pid for r, p in enumerate(self.processes) if r not in self.ended and p.pid}
        stacks = dump_stacks(self.folder, running)
        ended = {**dict.fromkeys(self.finished, "finished"), **self.died}
        return tuple(
            report(rank, self.recorder, ended.get(rank), self.failed.get(rank), stacks.get(rank))
            for rank in range(self.count)
        )

    def end(self) -> None:
        """Ends all processes and closes all pipes; a second interrupt is held back until then."""
        with _uninterrupted():
            for process in self.processes:
                if process.pid is not None:
                    end_group(process.pid)
                    process.kill()
            for process in self.processes:
                if process.pid is not None:
                    process.join()  # it was killed: only the kernel can still delay it
                    process.close()
            for connection in self.connections.values():
                connection.close()
            self.recorder.close()

    def _take(self, rank: int) -> bool:
        """Handles one message of a rank -> True if there may be more."""
        connection = self.connections.get(rank)
        try:
            if connection is None or not connection.poll():
                return False
            kind, *content = plain_loads(connection.recv_bytes())
        except (EOFError, OSError):
            self.connections.pop(rank).close()
            return False
        if kind == "print":
            self._print(rank, *content)
        elif kind == "finished":
            self.finished[rank] = tuple(content)
        else:
            self.failed[rank] = Failure(**content[0])
            self.events.append(rank)
        return True

    def _print(self, rank: int, stream: str, lines: list[str]) -> None:
        if not self.quiet:
            target = sys.stdout if stream == "stdout" else sys.stderr
            target.write("".join(f"[rank {rank}] {line}\n" for line in lines))
            target.flush()


def supervise(crew: Crew, timeout: float) -> None:
    """Listens until every rank has returned; raises as soon as one cannot."""
    deadline = time.monotonic() + timeout
    before, looked = {}, time.monotonic()
    while len(crew.finished) < crew.count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise _too_late(crew, timeout)
        crew.listen(min(left, GLANCE_SECONDS))
        if crew.events:
            crew.settle(GRACE_SECONDS)
            raise _failure(crew)
        if time.monotonic() - looked >= GLANCE_SECONDS:
            now, looked = stuck(crew.recorder, crew.ended), time.monotonic()
            if any(before.get(rank) == version for rank, version in now.items()):
                raise _deadlock(crew)
            before = now


def _failure(crew: Crew) -> RankError:
    """The first cause, never its consequences; among ranks that failed alike, the lowest."""
    reports = crew.reports()
    causes = crew.causes or crew.events
    first = min(rank for rank in causes if crew.said(rank) == crew.said(causes[0]))
    if first in crew.died:
        return RankDied(f"rank {first}: {crew.died[first]}", reports)
    failure = crew.failed[first]
    if failure.operation:
        return MismatchError(f"mismatch: {failure.message}", reports)
    kind = RankInputError if failure.is_input_error else RankError
    return kind(f"rank {first} raised {failure.kind}: {failure.message}", reports)


def _deadlock(crew: Crew) -> DeadlockError:
    reports = crew.reports()
    waiting = [report.rank for report in reports if report.state == "waiting"]
    gone = [report.rank for report in reports if report.state == "finished"]
    who = f"{ranks_text(waiting)} wait{'s' if len(waiting) == 1 else ''}"
    reason = (
        f"but {ranks_text(gone)} {'has' if len(gone) == 1 else 'have'} returned"
        if gone
        else "each for another that waits as well"
    )
    return DeadlockError(f"deadlock: {who}, {reason}", reports)


def _too_late(crew: Crew, timeout: float) -> RankError:
    reports = crew.reports()
    if all(report.state in ("waiting", "finished") for report in reports):
        return DeadlockError(f"deadlock: no rank had gone on after {timeout:g} s", reports)
    words = f"the deadline of {timeout:g} s has passed; {DeadlineError.ADVICE}"
    return DeadlineError(words, reports)


def _how_it_died(process: Any) -> str:
    process.join(EXIT_SECONDS)  # its pipe closes a moment before its exit code is available
    code = process.exitcode
    if code is not None and code < 0:
        hint = " (by hand, or for want of memory)" if code == -signal.SIGKILL else ""
        return f"killed by signal {-code}, {signal_text(-code)}{hint}"
    return f"its process exited with code {code} before it returned"


@contextlib.contextmanager
def _main_hidden() -> Iterator[None]:
    """Keeps multiprocessing from running the parent's main script again in each child."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    if os.name != "posix" or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
