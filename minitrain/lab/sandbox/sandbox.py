"""Runs untrusted code and brings back plain data: the wall between a submission and its grader.

    with Sandbox(hidden=["minitrain/parallel/collectives/algorithms.py"]) as sandbox:
        reply = sandbox.run(request)          # raises SubmissionFailed(kind, words)

A zygote (zygote.py) lives as long as the sandbox, inside bubblewrap where that works; each run is a
fresh fork of it with limits (limits.py), an audit hook (audit_hook.py) and a watch (watch.py).
What comes back is parsed without pickle (plain_data.py). A run that takes the zygote with it costs
itself only: the next run starts another one.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from minitrain.errors import InputError
from minitrain.lab.sandbox import bubblewrap, plain_data, verdict
from minitrain.lab.sandbox.limits import Limits
from minitrain.lab.sandbox.loader import texts
from minitrain.lab.sandbox.plain_data import FOLDERS
from minitrain.lab.sandbox.watch import Outcome, Watch, kill_family

START_SECONDS = 120.0  # importing torch from a cold disk


class Sandbox:
    """`hidden`: files of the package that no submission may see; `isolate=False` for tests."""

    def __init__(
        self, hidden: Sequence[str] = (), limits: Limits | None = None, isolate: bool = True
    ) -> None:
        self.hidden = tuple(sorted(set(hidden)))
        self.limits = (limits or Limits()).fitted()
        self.folder = tempfile.TemporaryDirectory(prefix="minitrain-")
        self.bubblewrap = bubblewrap.find() if isolate else None
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = False

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def warning(self) -> str | None:
        """What to tell an instructor where the kernel's walls are missing."""
        return None if self.bubblewrap else bubblewrap.MISSING

    def start(self) -> None:
        """Starts the zygote and does not wait for it: it imports torch while other things go on."""
        if not hasattr(os, "fork"):
            raise InputError(f"no sandbox on {sys.platform}: grade on Linux, macOS or in WSL")
        if self.process is not None and self.process.poll() is None:
            return
        self.stop()
        self.control, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as errors:
            self.errors: BinaryIO = os.fdopen(os.dup(errors.fileno()), "w+b")
            self.process = subprocess.Popen(
                self._command(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.errors,
                stderr=self.errors,
                env=self._environment(),
                cwd=self.folder.name,
                start_new_session=True,
            )

    def run(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """One run of at most `seconds`; the reply of `child.py`, or SubmissionFailed."""
        self.wait_until_ready()
        nonce = secrets.token_bytes(16)
        header = {**request, **self._rules(), "nonce": nonce, "seconds": seconds}
        result = self._exchange(plain_data.pack(header), seconds + request["grace"])
        if result.status is None:
            self.stop()
        return verdict.judge(result, nonce, self.limits, seconds, texts(request["solution"]))

    def _exchange(self, request: bytes, seconds: float) -> Outcome:
        reply, reply_end = os.pipe()
        output, output_end = os.pipe()
        try:
            with tempfile.TemporaryFile() as file:
                file.write(request)
                file.seek(0)
                try:
                    socket.send_fds(self.control, [b"F"], [file.fileno(), reply_end, output_end])
                finally:
                    os.close(reply_end), os.close(output_end)
            zygote = psutil.Process(self.process.pid)
            folder = None if self.bubblewrap else Path(self.folder.name)
            watch = Watch(self.control, reply, output, zygote, self.limits, folder)
            return watch.follow(seconds)
        except (psutil.NoSuchProcess, ConnectionError):
            return Outcome(cause="died")
        finally:
            os.close(reply), os.close(output)

    def _rules(self) -> dict[str, Any]:
        root = bubblewrap.PACKAGE.parent
        modules = {name.removesuffix(".py").replace("/", "."): name for name in self.hidden}
        denied = [root / "solutions", root / "tests"]
        for name in self.hidden:
            denied += [root / name, *_compiled(root / name)]
        places = [str(path) for path in denied]
        return {"limits": asdict(self.limits), "hidden": modules, "denied": places}

    def _command(self, control: int) -> list[str]:
        place = bubblewrap.PRIVATE if self.bubblewrap else self._work_folder()
        namespace = os.readlink("/proc/self/ns/pid") if sys.platform == "linux" else ""
        command = [
            sys.executable,
            "-s",
            "-m",
            "minitrain.lab.sandbox.zygote",
            str(control),
            place,
            namespace,
        ]
        if self.bubblewrap:
            return bubblewrap.wrap(self.bubblewrap, command, self.hidden, Path(self.folder.name))
        return command

    def _work_folder(self) -> str:
        path = Path(self.folder.name) / "work"
        path.mkdir(exist_ok=True)
        return str(path)

    def _environment(self) -> dict[str, str]:
        """Nothing of the user's: no tokens, no settings."""
        place = bubblewrap.PRIVATE if self.bubblewrap else self._work_folder()
        return {
            "PATH": os.defpath,
            "PYTHONPATH": str(bubblewrap.PACKAGE.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            **dict.fromkeys(FOLDERS, place),
            "USER": "learner",
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
        }

    def wait_until_ready(self) -> None:
        """Until the zygote has imported torch; starts it where it is not there."""
        self.start()
        if self.ready:
            return
        self.control.settimeout(START_SECONDS)
        with suppress(OSError):
            self.ready = self.control.recv(1) == b"R"
        self.control.settimeout(None)
        if not self.ready:
            raise RuntimeError(f"the sandbox did not start: {self._last_words()}")

    def _last_words(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")[-2000:] or "it said nothing"

    def stop(self) -> None:
        """Kills the zygote and all that is under it; `run` starts another."""
        if self.process is None:
            return
        with suppress(psutil.Error):
            kill_family(psutil.Process(self.process.pid))
        self.process.wait()
        self.control.close()
        self.errors.close()
        self.process, self.ready = None, False

    def close(self) -> None:
        """Ends the sandbox and removes its folder."""
        self.stop()
        with suppress(OSError):
            self.folder.cleanup()


def _compiled(source: Path) -> list[Path]:
    return list((source.parent / "__pycache__").glob(f"{source.stem}.*"))
