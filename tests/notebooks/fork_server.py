"""A process in which nbval, a kernel and torch are imported once; each notebook runs in forks of it.

    server ── fork ──> pytest with nbval ── fork ──> the kernel that runs the cells
       └── the ranks' own server, of which all kernels fork theirs

Importing costs 5 s of a core, and 1.6 s for the ranks, as long as many a notebook. A request is a
line on stdin, pytest's arguments, the kernel's environment and a file for what is printed; the
answer is the exit status.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from multiprocessing import forkserver
from typing import Any, NoReturn

KERNEL = ("ipykernel.kernelapp", "matplotlib.figure", "matplotlib.backends.backend_agg")
COURSE = ("torch._dynamo", "minitrain.lab.notebook.lab", "minitrain.lab.show")
PRELOAD = ("pytest", "nbval.plugin", *KERNEL, *COURSE)


def main() -> None:
    """Serves requests until stdin ends."""
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as every kernel has it
    for name in PRELOAD:
        importlib.import_module(name)
    start_rank_server()
    gc.freeze()  # else a collection in a fork would copy every page that it shares with us
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            run(**json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def start_rank_server() -> None:
    """What `Lab` has each kernel start; those that are forked from here use this one."""
    from minitrain.lab.notebook.lab import RANKS_USE
    from minitrain.ranks.launch import prepare

    prepare(*RANKS_USE)
    forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None


def run(arguments: list[str], environment: dict[str, str], output: str) -> NoReturn:
    """One notebook: `pytest arguments`, whose kernel is a fork as well."""
    import pytest
    from jupyter_client.provisioning import local_provisioner

    local_provisioner.launch_kernel = lambda command, **options: Kernel(command, options)
    os.environ.update(environment)
    redirect(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    leave(lambda: pytest.main(arguments))


class Kernel:
    """What jupyter_client expects of `subprocess.Popen`, of a fork that runs `command`."""

    stdin = stdout = stderr = None

    def __init__(self, command: list[str], options: dict[str, Any]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._become(command, options)
        os.setpgid(self.pid, self.pid)  # at once, since signals go to its group, not to ours

    @staticmethod
    def _become(command: list[str], options: dict[str, Any]) -> NoReturn:
        from ipykernel.kernelapp import launch_new_instance

        asyncio.set_event_loop(asyncio.new_event_loop())  # the present one runs in the parent
        os.chdir(options["cwd"])
        os.environ.update(options["env"])
        redirect(os.open(os.devnull, os.O_WRONLY))
        sys.argv = command[2:]  # python -m ipykernel_launcher …
        leave(launch_new_instance)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def redirect(target: int) -> None:
    """Python's and the process's own stdout and stderr to a file, stdin from nowhere."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, place in ((nothing, 0), (target, 1), (target, 2)):
        os.dup2(source, place)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__


def leave(work: Any) -> NoReturn:
    """Ends a fork with what `work` returns: nothing of the process that it was forked from runs."""
    status = 70  # an internal error
    try:
        status = int(work() or 0)
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
