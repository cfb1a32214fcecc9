"""Health checks of the machine, one line each: the finding, its verdict, and a remedy.

Each check is a function that returns a `Finding`; `fail` means that labs cannot run, `warn` that
something optional (browser tests, a strong sandbox, downloads) is missing.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from minitrain.lab.notebook.machine import Machine
from minitrain.paths import cache_dir, course_root

GB = 10**9
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")


@dataclass(frozen=True)
class Finding:
    """One finding; `state` is ok, warn or fail, and `remedy` is for the latter two."""

    name: str
    state: str
    found: str
    remedy: str = ""


def examine() -> Iterator[Finding]:
    """Yields findings one by one, so that a slow one does not delay the others."""
    for name, look in CHECKS.items():
        try:
            yield look()
        except ModuleNotFoundError as error:
            found = f"{error.name} is not installed"
            if name in ("torch", "Jupyter"):
                yield Finding(name, "fail", found, "run 'make setup'")
            else:
                yield Finding(name, "warn", f"not checked yet: {found}", "run 'make setup' first")
        except Exception as error:
            words = str(error).splitlines()[:1]
            found = ": ".join([type(error).__name__, *words])
            yield Finding(name, "fail", found, "run 'make setup' again")


def _judged(name: str, is_well: bool, found: str, state: str, remedy: str) -> Finding:
    """`state` and `remedy` apply if it is not well."""
    return Finding(name, "ok", found) if is_well else Finding(name, state, found, remedy)


def _python() -> Finding:
    found = f"{platform.python_version()} in {Path(sys.prefix).name}"
    is_known = (3, 10) <= sys.version_info[:2] <= (3, 13)
    remedy = "use 3.10 to 3.13: make PYTHON=python3.12 setup"
    return _judged("Python", is_known, found, "fail", remedy)


def _torch() -> Finding:
    import torch

    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    remedy = "needs 2.6 or later: pip install 'torch>=2.6'"
    return _judged("torch", (major, minor) >= (2, 6), torch.__version__, "fail", remedy)


def _cores() -> Finding:
    cores = Machine().cores
    remedy = "ranks take turns, timings mean little: use 2"
    return _judged("cores", cores >= 2, str(cores), "warn", remedy)


def _memory() -> Finding:
    total, free = _memory_bytes()
    found = f"{total / GB:.1f} GB, {free / GB:.1f} free"
    state = "warn" if free >= 1.5 * GB else "fail"
    remedy = "labs need 3 GB free: close other programs"
    return _judged("memory", free >= 3 * GB, found, state, remedy)


def _memory_bytes() -> tuple[float, float]:
    """Total and free bytes; before set-up from Linux itself."""
    try:
        import psutil
    except ModuleNotFoundError:
        meminfo = Path("/proc/meminfo")
        if not meminfo.is_file():
            raise
        sizes = dict(line.split(":") for line in meminfo.read_text().splitlines())
        return tuple(1024 * int(sizes[n].split()[0]) for n in ("MemTotal", "MemAvailable"))
    memory = psutil.virtual_memory()
    return memory.total, memory.available


def _disk() -> Finding:
    try:
        folder = cache_dir()
    except ModuleNotFoundError:  # before set-up, which downloads into the checkout
        folder = course_root()
    free = shutil.disk_usage(folder).free
    if free >= 2 * GB:
        return Finding("disk", "ok", f"{free / GB:.0f} GB free")
    found = f"{free / GB:.1f} GB free in {folder}"
    return Finding("disk", "warn", found, "downloads need 2 GB: free some, or skip them")


def _gpu() -> Finding:
    machine = Machine()
    found = machine.processor if machine.gpus else "none; every lab is graded on the CPU"
    return Finding("GPU", "ok", found)


def _ranks() -> Finding:
    from minitrain.ranks.launch import launch

    launch(_add_up, ranks=2, timeout=60)
    begun = time.perf_counter()
    sums = list(launch(_add_up, ranks=2, timeout=60))
    found = f"2 started and summed in {time.perf_counter() - begun:.2f} s"
    if sums == [3.0, 3.0]:
        return Finding("ranks", "ok", found)
    return Finding("ranks", "fail", f"the sum of 1 and 2 came back as {sums}", "reinstall torch")


def _add_up(group: object) -> float:
    import torch

    tensor = torch.tensor([float(group.rank + 1)])  # type: ignore[attr-defined]
    return float(group.all_reduce(tensor))  # type: ignore[attr-defined]


def _sandbox() -> Finding:
    program = shutil.which("bwrap")
    remedy = "graders of other people's code want it: sudo apt install bubblewrap"
    if program is None:
        return Finding("sandbox", "warn", "no bubblewrap; limits and an import block only", remedy)
    probe = [program, "--ro-bind", "/", "/", "--unshare-net", "--unshare-pid", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=20)
    if done.returncode == 0:
        return Finding("sandbox", "ok", "bubblewrap")
    reason = (done.stderr.strip().splitlines() or ["it does not start"])[-1]
    return Finding("sandbox", "warn", reason, "user namespaces are off here: ask the administrator")


def _browser() -> Finding:
    program = find_chromium()
    if program:
        return Finding("Chromium", "ok", program)
    remedy = "only the browser tests want it: sudo apt install chromium"
    return Finding("Chromium", "warn", "none; the browser tests skip", remedy)


def find_chromium() -> str | None:
    """The browser for the tests, from the system's packages."""
    return next((path for path in map(shutil.which, CHROMIUM) if path), None)


def _jupyter() -> Finding:
    from importlib.metadata import version

    from jupyter_client.kernelspec import KernelSpecManager

    found = f"JupyterLab {version('jupyterlab')}, kernel python3"
    command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    own = os.path.realpath(command) == os.path.realpath(sys.executable)
    if own or not os.path.isabs(command):
        return Finding("Jupyter", "ok", found)
    remedy = f"install our own: {sys.executable} -m ipykernel install --sys-prefix"
    return Finding("Jupyter", "fail", f"kernel python3 is {command}", remedy)


def _course() -> Finding:
    labs = sorted((course_root() / "labs").glob("e*.ipynb"))
    if labs:
        return Finding("course", "ok", f"{len(labs)} labs in {course_root()}")
    remedy = "run 'make build', or clone the course again"
    return Finding("course", "fail", "labs/ is empty", remedy)


CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": _python,
    "torch": _torch,
    "cores": _cores,
    "memory": _memory,
    "disk": _disk,
    "GPU": _gpu,
    "ranks": _ranks,
    "sandbox": _sandbox,
    "Chromium": _browser,
    "Jupyter": _jupyter,
    "course": _course,
}
