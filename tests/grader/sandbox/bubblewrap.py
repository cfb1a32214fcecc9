"""The command line of bubblewrap, unprivileged kernel namespaces: the first wall.

Only Python's needs are visible (the interpreter, its packages, `minitrain`, the kit and the
grader), all read-only: no home, no `solutions/`, no checks, no `.git`, wherever the checkout and
the environment are. A hidden file is replaced by one that says so on import. No network; its own
PID namespace and temporary folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import minitrain
from minitrain.lab.sandbox.limits import Limits

COURSE = Path(minitrain.__file__).resolve().parent.parent
SHOWN = [COURSE / place for place in ("minitrain", "labs/kit", "tests/grader")]
PRIVATE = "/tmp"  # inside: a tmpfs of its own
MISSING = (
    "bubblewrap is not installed, or the kernel forbids it: a submission can read files and reach "
    "the network in unusual ways; grade only what you trust, or use Linux with bubblewrap"
)
ROOT = (
    "you are root: a hole in the sandbox would be a hole in this machine; grade as a user who "
    "owns nothing here"
)
REFUSED = "not allowed while your code is graded: it imports {}, which is hidden"
SYSTEM = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/nix/store", "/opt"]
SETTINGS = [
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    *("/etc/hosts", "/etc/nsswitch.conf", "/etc/localtime", "/etc/ssl"),
]


def find() -> str | None:
    """The path of `bwrap`, if it is installed and works on this kernel."""
    program = shutil.which("bwrap") if sys.platform == "linux" else None
    if program is None:
        return None
    command = [program, *_walls(), *_system(), "--", sys.executable, "-S", "-c", "pass"]
    try:
        works = subprocess.run(command, capture_output=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return program if works.returncode == 0 else None


def wrap(program: str, command: list[str], lids: Mapping[str, int]) -> list[str]:
    """`command` inside the walls. `lids`: a hidden file of the package -> the descriptor from
    `lid`."""
    course = [word for path in SHOWN for word in ("--ro-bind", str(path), str(path))]
    arguments = [*_walls(), *_system(), *course, *_covered(lids), "--remount-ro", str(COURSE)]
    return [program, *arguments, "--remount-ro", "/", "--chdir", PRIVATE, "--", *command]


def _walls() -> list[str]:
    return [
        *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--hostname", "grader", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"),
        *("--dev", "/dev"),
        *("--size", str(Limits.disk_bytes), "--tmpfs", PRIVATE),
        *("--size", str(Limits.disk_bytes), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
    ]


def _system() -> list[str]:
    """Read-only mounts: the system's libraries, then every folder on this interpreter's path.

    The checkout, if inside one of these, is covered by an empty folder with only its needed parts.
    """
    arguments: list[str] = []
    for name in SYSTEM:
        path = Path(name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), name]
        elif path.exists():
            arguments += ["--ro-bind", name, name]
    for name in SETTINGS:
        arguments += ["--ro-bind-try", name, name]
    folders = _interpreter()
    inner = [folder for folder in folders if Path(folder).is_relative_to(COURSE)]
    for folder in folders:
        arguments += ["--ro-bind", folder, folder] if folder not in inner else []
    arguments += ["--tmpfs", str(COURSE)]
    for folder in inner:
        for shown in _environment(Path(folder)):
            arguments += ["--ro-bind", shown, shown]
    return arguments


def _environment(folder: Path) -> list[str]:
    """The folder; if the environment is the checkout itself, only the environment's parts."""
    parts = [COURSE / name for name in ("bin", "lib", "lib64", "include", "pyvenv.cfg")]
    return [str(p) for p in (parts if folder == COURSE else [folder]) if p.exists()]


def _interpreter() -> list[str]:
    roots = [sys.base_prefix, sys.prefix, str(Path(sys.executable).resolve().parent.parent)]
    packages = [entry for entry in sys.path if "-packages" in Path(entry).name]
    wanted = sorted({str(Path(p).absolute()) for p in [*roots, *packages] if Path(p).is_dir()})
    shown = [folder for folder in wanted if not folder.startswith("/usr")]
    return [f for f in shown if not any(f.startswith(other + "/") for other in shown)]


def lid(name: str) -> int:
    """An in-memory file, open for `wrap`, that on import reports that `name` is hidden."""
    file = os.memfd_create("lid")
    os.write(file, f"raise ImportError({REFUSED.format(name)!r})\n".encode())
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _covered(lids: Mapping[str, int]) -> list[str]:
    """A lid on each hidden file, and on its compiled copies."""
    arguments: list[str] = []
    for name, file in lids.items():
        path = COURSE / name
        arguments += ["--ro-bind-data", str(file), str(path)]
        cache = path.parent / "__pycache__"
        if cache.is_dir():
            arguments += ["--tmpfs", str(cache), "--remount-ro", str(cache)]
    return arguments
