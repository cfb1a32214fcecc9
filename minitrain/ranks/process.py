"""The process of one rank: joins the others, runs the function, sends the result, and stays.

It stays until the launching process ends it. A rank that left early would close its sockets, and
the others, waiting for it, would fail with "Connection closed by peer", which hides the cause. It
leads its own process group, so that one kill ends it and every process it started.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import linecache
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
import torch.distributed as dist

from minitrain.errors import InputError
from minitrain.generators import seed_generators
from minitrain.network.logical_clock import LogicalClock
from minitrain.ranks.errors import ConnectionLost, Mismatch
from minitrain.ranks.flight_recorder import FlightRecorder
from minitrain.ranks.group import Group, meet
from minitrain.ranks.payload import dumps
from minitrain.ranks.sigterm import end_if_it_waits, signal_numbers
from minitrain.ranks.source import learner_line
from minitrain.ranks.work import says_peer_is_gone

HOME = str(Path(__file__).parents[1])  # the folder of the package
GLANCE_SECONDS = 0.2
LONGEST_LINE = 1 << 16


@dataclass(frozen=True)
class Task:
    """The task given to every rank of a launch; `call` is the pickled (fn, args, fabric)."""

    ranks: int
    threads: int
    on_gpus: bool
    call: bytes
    cells: dict[str, tuple]
    environment: dict[str, str]


@dataclass(frozen=True)
class Failure:
    """An exception of a rank as plain values; frames: (file, line, function), innermost last."""

    kind: str
    message: str
    frames: tuple[tuple[str, int, str], ...]
    operation: str | None = None  # the rank's operation, if that is the error
    is_consequence: bool = False
    is_input_error: bool = False


class Carrier(Protocol):
    """Carries a launch's messages in place of torch's process groups, in forked ranks.

    `end(rank)`, in the rank's own process, acts as torch's ProcessGroup; `start()` is called in the
    launching process after all ranks are forked.
    """

    def end(self, rank: int) -> Any: ...
    def start(self) -> None: ...


class SharedPipe:
    """The pipe to the launching process, shared by all threads of a rank, as any may print."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.turn = connection, threading.Lock()

    def send(self, kind: str, *content: Any) -> None:
        with self.turn:
            self.connection.send((kind, *content))


class LineStream(io.TextIOBase):
    """A text stream that forwards whole lines, so that the ranks' output never mixes."""

    def __init__(self, pipe: SharedPipe, name: str) -> None:
        self.pipe, self.name, self.pending = pipe, name, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        whole, newline, rest = (self.pending + text).rpartition("\n")
        if len(rest) > LONGEST_LINE:
            whole, newline, rest = whole + newline + rest, "\n", ""
        self.pending = rest
        if newline:
            self.pipe.send("print", self.name, [_last_state(line) for line in whole.split("\n")])
        return len(text)

    def close(self) -> None:
        if self.pending:
            self.write("\n")


def own_modules() -> dict[str, ModuleType]:
    """The modules of this package that are loaded."""
    package = __name__.partition(".")[0]
    return {name: m for name, m in sys.modules.items() if name.partition(".")[0] == package}


def edited_at(module: ModuleType) -> int | None:
    """Modification time of the module's source in nanoseconds; None if there is no file."""
    file = Path(module.__file__ or "")
    return file.stat().st_mtime_ns if file.is_file() else None


def enter(caller_home: str, *args: Any) -> None:
    """Runs `run_rank(*args)` of the package in `caller_home`, as it is on disk now.

    The server that ranks are forked from has the package loaded, so a rank starts 20 ms sooner.
    If any source is newer, or the caller uses another copy of the package, the rank unloads all of
    it and imports from disk: an edit takes effect at the next launch.
    """
    server = sys.modules.get("minitrain.ranks.server")
    loaded = server.LOADED if server else {}
    is_fresh = all(edited_at(m) == loaded.get(name) for name, m in own_modules().items())
    if caller_home == HOME and is_fresh:
        run_rank(*args)
    for name in own_modules():
        del sys.modules[name]
    from minitrain.ranks.process import run_rank as run_rank_of_now

    run_rank_of_now(*args)


def run_rank(
    connection: Connection,
    folder: str,
    rank: int,
    inherited: Iterable = (),
    carrier: Carrier | None = None,
) -> None:
    """The target of a rank's process; returns only when the process ends."""
    gc.freeze()  # else garbage collection would copy every page shared with the server
    for other in inherited:  # with fork, the other ranks' pipes are inherited
        other.close()
    pipe = SharedPipe(connection)
    if not Path(folder).exists():  # the launch was interrupted before this rank began
        os._exit(1)
    _detach(Path(folder), rank)
    task: Task = pickle.loads((Path(folder) / "task").read_bytes())
    recorder = FlightRecorder.open(Path(folder) / "flight-recorder", rank)
    out, err = LineStream(pipe, "stdout"), LineStream(pipe, "stderr")
    with signal_numbers() as signals:
        watch = partial(_watch, connection, signals, recorder, folder, rank)
        threading.Thread(target=watch, daemon=True).start()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            answer = _answer(task, folder, rank, recorder, carrier)
            out.close()
            err.close()
        pipe.send(*answer)
        while True:
            threading.Event().wait()


def _answer(
    task: Task, folder: str, rank: int, recorder: FlightRecorder, carrier: Carrier | None
) -> tuple:
    """The result as plain values, whose classes the launching process need not know."""
    try:
        _prepare(task, rank)
        group = _join(task, folder, rank, recorder, carrier)
        fn, args, fabric = pickle.loads(task.call)
        if fabric is not None:
            group.use(LogicalClock(fabric, group.ranks[group.rank]))
        recorder.compute()
        recorder.glance(_first_line(fn))
        result = fn(group, *args)
        seconds = group.now()
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        return "finished", _packed(result), group.trace.as_dict(), seconds
    except BaseException as error:
        return "failed", asdict(failure(error))


def _first_line(fn: Any) -> str:
    code = getattr(fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def _packed(result: Any) -> bytes:
    try:
        return dumps(result)
    except Exception as error:
        kind = type(result).__name__
        raise TypeError(f"what it returned, a {kind}, cannot be sent back: {error}") from error


def failure(error: BaseException) -> Failure:
    trail = traceback.extract_tb(error.__traceback__)
    frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in trail]
    return Failure(
        type(error).__name__,
        str(error),
        tuple(frames),
        operation=error.mine if isinstance(error, Mismatch) else None,
        is_consequence=isinstance(error, ConnectionLost) or says_peer_is_gone(error),
        is_input_error=isinstance(error, InputError),
    )


def _detach(folder: Path, rank: int) -> None:
    """Detaches from the terminal: the launching process handles interrupts.

    Its own children (a loader's workers) start by the platform's default method, not as the rank
    did: a forkserver of its own would cost each rank seconds.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the inherited one
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    if os.name == "posix":
        os.setsid()
        stack = open(folder / f"stack-{rank}", "w")  # noqa: SIM115 (open as long as the rank lives)
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)


def _watch(
    launching: Connection, signals: socket.socket, recorder: FlightRecorder, folder: str, rank: int
) -> None:
    """The rank's second thread, which watches while the first runs the function.

    It regularly records the first one's line, and ends the process when the launching process is
    gone, or at a SIGTERM that a wait would delay.
    """
    main = threading.main_thread().ident
    while launching not in (ready := wait([launching, signals], GLANCE_SECONDS)):
        recorder.glance(learner_line(sys._current_frames().get(main)))
        if signals in ready and signal.SIGTERM in signals.recv(64):
            threading.Thread(target=end_if_it_waits, args=(recorder, rank), daemon=True).start()
    shutil.rmtree(folder, ignore_errors=True)
    end_group(os.getpid())


def end_group(pid: int) -> None:
    """Kills the rank `pid` and every process it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGTERM)


def _prepare(task: Task, rank: int) -> None:
    os.environ.update(task.environment)
    linecache.cache.update(task.cells)
    torch.set_num_threads(task.threads)
    seed_generators(rank)  # ranks differ, so a forgotten broadcast shows


def _join(
    task: Task, folder: str, rank: int, recorder: FlightRecorder, carrier: Carrier | None
) -> Group:
    """Joins the other ranks through a file, over the loopback interface, or through the carrier."""
    if carrier is not None:
        return Group(carrier.end(rank), range(task.ranks), rank, recorder=recorder)
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback[0]
    device = torch.device("cuda", rank) if task.on_gpus else torch.device("cpu")
    if task.on_gpus:
        torch.cuda.set_device(device)
    store = dist.FileStore(str(Path(folder) / "store"), task.ranks)
    everyone = meet(task.on_gpus, store, rank, task.ranks)
    return Group(everyone, range(task.ranks), rank, device, recorder=recorder)


def _last_state(line: str) -> str:
    """Reduces a progress bar's carriage returns to the text a terminal would show last."""
    return line.rstrip("\r").rsplit("\r", 1)[-1]
