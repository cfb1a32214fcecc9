"""`python -m minitrain lab`: JupyterLab on the map of the course."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Annotated

import typer


def lab(
    name: Annotated[str, typer.Argument(help="the notebook to open")] = "index",
    browser: Annotated[bool, typer.Option(help="open a browser window")] = True,
    port: Annotated[int, typer.Option(help="the port; the next free one where it is taken")] = 8888,
    ip: Annotated[str, typer.Option(help="0.0.0.0 to reach it from another machine")] = "localhost",
) -> None:
    """Open JupyterLab on a lab (by default on labs/index.ipynb, the map of the course)."""
    from minitrain.errors import InputError, unknown_name
    from minitrain.lab.notebook.server import server_command
    from minitrain.paths import course_root

    root = course_root()
    known = {path.stem: path for path in (root / "labs").glob("*.ipynb")}
    if not known:
        raise InputError(f"{root / 'labs'} holds no notebooks: run 'make build' first")
    if name.removesuffix(".ipynb") not in known:
        raise unknown_name("lab", name, known)
    if not 0 < port < 65536:
        raise InputError(f"port {port} is none: give one from 1 to 65535, such as 8888")
    page = known[name.removesuffix(".ipynb")]
    options = (f"--ServerApp.ip={ip}",) if ip != "localhost" else ()
    print(f"JupyterLab opens on labs/{page.name}; Ctrl-C here, twice, stops it.", flush=True)
    become(server_command(root, page, port, browser, options))


def become(command: list[str]) -> None:
    """Runs it in place of this process, so that signals and the exit code are its own."""
    if os.name == "posix":
        os.execv(command[0], command)
    sys.exit(subprocess.run(command).returncode)
