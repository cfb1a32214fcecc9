"""`python -m minitrain lab`: JupyterLab on the map of the course."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from minitrain.apps.kinds import HOST, Argument, Kind, Option, whole
from minitrain.errors import InputError, unknown_name
from minitrain.paths import course_root, stand_in_home


def read_page(text: str) -> Path:
    """A notebook of labs/, by its name."""
    labs = course_root() / "labs"
    known = {path.stem: path for path in labs.glob("*.ipynb")}
    if not known:
        raise InputError(f"{labs} holds no notebooks: run 'make build' first")
    if text.removesuffix(".ipynb") not in known:
        raise unknown_name("lab", text, known)
    return known[text.removesuffix(".ipynb")]


PAGE = Kind("LAB", "the name of a lab", read_page)


def lab(
    page: Annotated[Path, Argument(PAGE, "the notebook to open")] = "index",
    browser: Annotated[bool, typer.Option(help="open a browser window")] = True,
    port: Annotated[int, Option(whole(1, 65535), "or the next that is free")] = 8888,
    ip: Annotated[str, Option(HOST, "0.0.0.0 to reach it from other machines")] = "localhost",
) -> None:
    """Open JupyterLab on a lab, or on the map of the course."""
    from minitrain.lab.notebook.server import environment, server_command

    options = (f"--ServerApp.ip={ip}",) if ip != "localhost" else ()
    tools = Path(sys.executable).parent
    os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"  # of its terminals
    if not os.access(Path.home(), os.W_OK):
        home = stand_in_home()
        home.mkdir(exist_ok=True)
        os.environ["HOME"] = str(home)  # Jupyter, IPython and we write there
        print(f"{Path.home()} takes the place of your home, which cannot be written.")
    print(f"JupyterLab opens on labs/{page.name}; Ctrl-C here, twice, stops it.")
    print(f"`minitrain` works in its terminals; in a shell of your own it is {tools}/minitrain.")
    sys.stdout.flush()
    os.environ.update(environment())
    become(server_command(course_root(), page, port, browser, options))


def become(command: list[str]) -> None:
    """Runs it in place of this process, so that signals and the exit code are its own."""
    if os.name == "posix":
        os.execv(command[0], command)
    sys.exit(subprocess.run(command).returncode)
