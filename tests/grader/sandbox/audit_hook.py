"""A Python audit hook (PEP 578) that refuses operations no exercise needs: the sandbox's second
wall.

Under bubblewrap the kernel already hides files and network, and this hook only gives clear
messages. Without it the hook alone protects the solutions: Python code cannot remove it, but C code
can bypass it, so the grader then reports that the submission is not isolated.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DESTROYING = {
    *("os.remove", "os.rmdir", "os.rename", "os.truncate", "os.chmod", "os.chown", "os.link"),
    *("os.symlink", "os.utime", "shutil.rmtree", "shutil.move", "shutil.chown"),
}
STARTING = {
    *("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn"),
    *("os.spawn", "os.startfile", "pty.spawn"),
}
LOW_LEVEL = {
    *("ctypes.dlopen", "ctypes.dlsym", "ctypes.call_function", "ctypes.cdata"),
    *("ctypes.cdata/buffer", "ctypes.string_at", "ctypes.wstring_at"),
}
# Modules for testing the interpreter: threads, frames and interpreters without audit events.
INSIDES = {"_testcapi", "_testinternalcapi", "_xxsubinterpreters", "_interpreters"}
MEMORY = re.compile(r"/proc/(?:\d+|self|thread-self)/(?:task/\d+/)?mem")
NOT_ALLOWED = "not allowed while your code is graded"
INTERNET = {socket.AF_INET, socket.AF_INET6}


class Forbidden(PermissionError):
    """A forbidden operation; the message is for the learner."""


class AuditHook:
    """Called by the interpreter before each file, socket, process or import of a submission.

    denied: files and folders that may not be read. writable: folders that may be written.
    hidden: modules that may not be imported -> the file to name.
    """

    def __init__(
        self, denied: Sequence[str], writable: Sequence[str], hidden: dict[str, str]
    ) -> None:
        self.denied = [os.path.realpath(path) for path in denied]
        self.writable = [os.path.realpath(path) for path in writable] + ["/dev/null"]
        self.hidden = hidden
        self.protected = {os.getppid(), 0, 1, -1}
        self.loading = True  # a demo cell may import the reference to compare: not an attack
        self.violations: list[str] = []
        self.rules: dict[str, Callable[..., None]] = {
            "open": self.on_open,
            "import": self.on_import,
            "os.kill": self.on_kill,
            "os.killpg": self.on_kill,
            "socket.__new__": self.on_socket,
            "os.listdir": self.on_read,
            "os.scandir": self.on_read,
            **dict.fromkeys(DESTROYING, self.on_write),
            "os.mkdir": self.on_mkdir,
        }

    def install(self) -> None:
        """Permanent for this process: an audit hook cannot be removed."""
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        rule = self.rules.get(event)
        if rule is not None:
            rule(*arguments)
        elif event in STARTING:
            self.refuse(f"starts another process ({event})")
        elif event in LOW_LEVEL:
            self.refuse(f"calls into C libraries ({event})")

    def refuse(self, what: str) -> None:
        self.violations.append(what)
        raise Forbidden(f"{NOT_ALLOWED}: it {what}")

    def on_open(self, path: Any, mode: Any = None, flags: Any = 0, *rest: Any) -> None:
        if isinstance(path, int):
            return
        if isinstance(flags, int) and flags & WRITING:
            self.on_write(path)
        self.on_read(path)

    def on_read(self, path: Any = None, *rest: Any) -> None:
        real = _real(path)
        if real and _inside(real, self.denied) and not _inside(real, self.writable):
            self.refuse(f"reads {_tail(real)}, which is hidden")
        if real and MEMORY.fullmatch(real):
            self.refuse("reads the memory of a process, its own or another's")

    def on_write(self, path: Any = None, *rest: Any) -> None:
        real = _real(path)
        if real and not _inside(real, self.writable):
            self.refuse(f"changes {_tail(real)}; it may write in its own temporary folder only")

    def on_mkdir(self, path: Any = None, *rest: Any) -> None:
        if not os.path.isdir(_real(path) or ""):  # an existing folder is fine: makedirs may ask
            self.on_write(path)

    def on_import(self, module: str, *rest: Any) -> None:
        if module in INSIDES:
            self.refuse(f"imports {module}, which is made to test Python itself")
        if module in self.hidden:
            words = f"imports {module} ({self.hidden[module]}), the reference that is hidden"
            if self.loading:
                raise ImportError(f"{NOT_ALLOWED}: it {words}")
            self.refuse(words)

    def on_kill(self, pid: int, *rest: Any) -> None:
        if pid in self.protected or pid < 0:
            self.refuse("sends a signal to the process that grades it")

    def on_socket(self, _: Any, family: int, *rest: Any) -> None:
        if family in INTERNET or family == -1:
            self.refuse("opens a network socket")
        self.refuse("opens a socket")


def _real(path: Any) -> str | None:
    if isinstance(path, (str, bytes, os.PathLike)):
        return os.path.realpath(os.fsdecode(path))
    return None


def _inside(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)


def _tail(path: str) -> str:
    """The end of a path: enough to identify the file, without the machine's layout."""
    return os.sep.join(path.split(os.sep)[-2:])
