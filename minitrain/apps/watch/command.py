"""`python -m minitrain watch RUN`: a run in the browser, live or finished, until Ctrl-C."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Annotated

from minitrain.apps.kinds import HOST, PATH, Argument, Option, whole
from minitrain.apps.serve.command import listen
from minitrain.optional import require

NEEDED = ("starlette", "uvicorn")


def watch(
    run: Annotated[Path, Argument(PATH, "the run's folder, such as runs/1M-corpus")],
    host: Annotated[str, Option(HOST, "0.0.0.0 for other machines")] = "127.0.0.1",
    port: Annotated[int, Option(whole(0, 65535), "0: any that is free")] = 8001,
) -> None:
    """Watch a run in the browser: its losses, its ranks, its alerts, once a second."""
    require("the page", *NEEDED, install="'minitrain[serve]'")
    from minitrain.apps.watch.tail import open_run

    folder = open_run(run)
    listening = listen(host, port)
    print(f"{folder} is shown at http://{host}:{listening.getsockname()[1]}; Ctrl-C ends it.")
    sys.stdout.flush()
    show(folder, listening)


def show(folder: Path, listening: socket.socket) -> None:
    from minitrain.apps.watch.server import page_server

    try:
        page_server(folder).run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn has ended well, and tells whoever waits for the signal
        return
