"""Runs untrusted code and returns plain data: the wall between a submission and its grader.

    with Sandbox(hidden=["minitrain/parallel/collectives/algorithms.py"]) as sandbox:
        reply = sandbox.run(request)          # or SubmissionFailed(kind, words), or SandboxDown

A zygote (zygote.py) lives as long as the sandbox, inside bubblewrap where that works; each run is a
fresh fork of it with limits (limits.py), an audit hook (audit_hook.py) and a watch (watch.py).
Requests and replies are in request.py; replies are parsed without pickle (plain_data.py). A run
that kills the zygote affects only itself: the next run starts a new one.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import psutil

from minitrain.errors import InputError
from minitrain.lab.sandbox import bubblewrap
from minitrain.lab.sandbox.limits import FOLDERS, Limits
from minitrain.lab.sandbox.request import Reply, Request
from minitrain.lab.sandbox.verdict import reply_of
from minitrain.lab.sandbox.watch import Ending, Watch, kill_family

START_SECONDS = 120.0  # importing torch from a cold disk


class SandboxDown(InputError):
    """Nothing can be graded on this machine: not a submission's fault, and not a verdict on one."""


class Sandbox:
    """`hidden`: files of the package that no submission may see; `isolate=False` for tests."""

    def __init__(
        self, hidden: Sequence[str] = (), limits: Limits | None = None, isolate: bool = True
    ) -> None:
        self.hidden = tuple(sorted(set(hidden)))
        self.limits = (limits or Limits()).fitted()
        self.bubblewrap = bubblewrap.find() if isolate else None
        outside = None if self.bubblewrap else tempfile.TemporaryDirectory(prefix="minitrain-")
        self.folder = outside  # where runs write if they have no /tmp of their own
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = False

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def warning(self) -> str | None:
        """A warning for instructors where the kernel's walls are missing."""
        return None if self.bubblewrap else bubblewrap.MISSING

    def start(self) -> None:
        """Starts the zygote without waiting: it imports torch in the background."""
        if not hasattr(os, "fork"):
            raise InputError(f"no sandbox on {sys.platform}: grade on Linux, macOS or in WSL")
        if self.process is not None and self.process.poll() is None:
            return
        self.stop()
        self.control, theirs = socket.socketpair()
        self.errors: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `stop`)
        lids = {name: bubblewrap.lid(name) for name in self.hidden} if self.bubblewrap else {}
        with theirs:
            self.process = subprocess.Popen(
                self._command(theirs.fileno(), lids),
                pass_fds=[theirs.fileno(), *lids.values()],
                stdin=subprocess.DEVNULL,
                stdout=self.errors,
                stderr=self.errors,
                env=self._environment(),
                cwd=self.folder.name if self.folder else "/",  # bubblewrap goes to its own /tmp
                start_new_session=True,
            )
        for file in lids.values():
            os.close(file)

    def run(self, request: Request) -> Reply:
        """One run under this sandbox's rules; SubmissionFailed where it gave no result."""
        self.wait_until_ready()
        request = self._under_rules(request)
        ending = Ending()
        try:
            ending = self._follow(request)
        finally:
            if ending.status is None:  # it hangs, or was interrupted: end it here
                self.stop()
        return reply_of(ending, request)

    def _under_rules(self, request: Request) -> Request:
        """Adds the limits, the unreadable paths, and a nonce for this run."""
        root = bubblewrap.COURSE
        tests = [path for path in (root / "tests").glob("*") if path.name != "grader"]
        denied = [root / "solutions", *tests]
        for name in self.hidden:
            denied += [root / name, *_compiled(root / name)]
        return replace(
            request,
            limits=self.limits,
            hidden={name.removesuffix(".py").replace("/", "."): name for name in self.hidden},
            denied=[str(path) for path in denied],
            nonce=secrets.token_bytes(16),
        )

    def _follow(self, request: Request) -> Ending:
        """Hands the zygote the request and two pipes, for the reply and for printed output."""
        reply, reply_end = os.pipe()
        output, output_end = os.pipe()
        try:
            with tempfile.TemporaryFile() as file:
                file.write(request.pack())
                file.seek(0)
                try:
                    socket.send_fds(self.control, [b"F"], [file.fileno(), reply_end, output_end])
                finally:
                    os.close(reply_end), os.close(output_end)
            zygote = psutil.Process(self.process.pid)
            folder = Path(self.folder.name) if self.folder else None
            watch = Watch(self.control, reply, output, zygote, self.limits, folder)
            return watch.follow(request.patience)
        except (psutil.NoSuchProcess, ConnectionError):
            return Ending(cause="died")
        finally:
            os.close(reply), os.close(output)

    def _command(self, control: int, lids: dict[str, int]) -> list[str]:
        namespace = os.readlink("/proc/self/ns/pid") if sys.platform == "linux" else ""
        python = [sys.executable, "-s", "-m", "minitrain.lab.sandbox.zygote"]
        command = [*python, str(control), self._work_folder(), namespace]
        if self.bubblewrap:
            return bubblewrap.wrap(self.bubblewrap, command, lids)
        return command

    def _work_folder(self) -> str:
        """The folder that a run may write to, as seen from inside."""
        return self.folder.name if self.folder else bubblewrap.PRIVATE

    def _environment(self) -> dict[str, str]:
        """An environment without the user's tokens and settings."""
        return {
            "PATH": os.defpath,
            "PYTHONPATH": str(bubblewrap.COURSE),
            "PYTHONDONTWRITEBYTECODE": "1",
            **dict.fromkeys(FOLDERS, self._work_folder()),
            "USER": "learner",
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
        }

    def wait_until_ready(self) -> None:
        """Waits until the zygote has imported torch; starts it if needed."""
        self.start()
        if self.ready:
            return
        self.control.settimeout(START_SECONDS)
        with suppress(OSError):
            self.ready = self.control.recv(1) == b"R"
        self.control.settimeout(None)
        if not self.ready:
            raise SandboxDown(
                f"the sandbox did not start, and nothing was graded: {self._last_words()}; "
                "`minitrain doctor` says what this machine lacks"
            )

    def _last_words(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")[-2000:].strip() or "it said nothing"

    def stop(self) -> None:
        """Kills the zygote and its descendants; `run` starts another."""
        if self.process is None:
            return
        with suppress(psutil.Error):
            kill_family(psutil.Process(self.process.pid))
        self.process.wait()
        self.control.close()
        self.errors.close()
        self.process, self.ready = None, False

    def close(self) -> None:
        """Ends the sandbox and removes its files."""
        self.stop()
        if self.folder:
            with suppress(OSError):
                self.folder.cleanup()


def _compiled(source: Path) -> list[Path]:
    """The cached bytecode files of a source file."""
    return list((source.parent / "__pycache__").glob(f"{source.stem}.*"))
