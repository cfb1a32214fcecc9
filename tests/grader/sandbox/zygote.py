"""The sandbox's fork server: imports torch once, and forks a fresh child for every run.

Importing torch takes seconds, forking 20 ms. It never runs a torch operation, because threads do
not survive a fork, and never sees a byte of a submission: the child reads its request and writes
its reply through its own files. No process or file of a run outlives it.

    grader                         zygote                        child
      │  three file descriptors      │  fork                       │
      ├─────────────────────────────►├────────────────────────────►│ request: read
      │  reply, output ◄──────────────────────────────────────────┤ runs the submission
      │  "K": time is up ───────────►│  kill all ─────────────────►│
      │  wait status ◄───────────────┤  kill what is left, empty the folder
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import shutil
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

STATUS = struct.Struct("<i")
# torch._dynamo: imported by a process's first optimizer, for more than a second.
PRELOAD = [
    *("torch", "torch.distributed", "torch.testing", "torch.utils.checkpoint", "torch._dynamo"),
    *("numpy", "einops", "cloudpickle", "minitrain.ranks.launch", "minitrain.lab.sandbox.child"),
]
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36


def main(control_fd: int, folder: str, outer_namespace: str) -> None:
    """Serves runs until the grader's end of the socket is closed."""
    control = socket.socket(fileno=control_fd)
    private = _pid_namespace() not in ("", outer_namespace)
    given = set(os.listdir(folder))  # e.g. a checkout below /tmp, not written by a run
    _prepare()
    control.send(b"R")
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1, 3)
        if not message:
            return
        if len(fds) == 3:  # anything else is a late "K" for a run that is over
            status = _serve(control, fds, folder, private)
            _empty(folder, given)
            control.send(STATUS.pack(status))


def _prepare() -> None:
    for name in PRELOAD:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else a child's garbage collection would copy all shared pages
    if sys.platform == "linux":
        from minitrain.lab.sandbox.child import prctl

        prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans come to us, so that none outlives its run
        prctl(PR_SET_DUMPABLE, 0)  # no child may read or change our memory


def _serve(control: socket.socket, fds: list[int], folder: str, private: bool) -> int:
    """Forks the child and returns its wait status, once all its processes are gone."""
    from minitrain.lab.sandbox import child

    pid = os.fork()
    if pid == 0:
        control.close()
        child.main(*fds, folder)
    for fd in fds:
        os.close(fd)
    status = _wait(control, pid, private)
    _clear(private)
    return status


def _wait(control: socket.socket, pid: int, private: bool) -> int:
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        ready, _, _ = select.select([control], [], [], 0.003)
        if ready:
            grader_is_there = bool(control.recv(1))
            _kill_all(private)
            if not grader_is_there:
                os._exit(0)


def _kill_all(private: bool) -> None:
    """Kills every process of the run, including those that left its session."""
    if private:  # in our own PID namespace -1 means everyone but us and init
        assert os.getppid() <= 1, "kill(-1) only where it cannot reach beyond the sandbox"
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        return
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            process.kill()


def _clear(private: bool) -> None:
    """Kills and reaps until nothing is left; the grader kills survivors after a second."""
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        _kill_all(private)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _empty(folder: str, given: set[str]) -> None:
    for entry in Path(folder).iterdir():
        if entry.name in given:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid") if sys.platform == "linux" else ""


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
