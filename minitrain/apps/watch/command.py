"""`python -m minitrain watch RUN`: a run in the browser, live or finished, until Ctrl-C; and
`alerts`, its rules for Prometheus.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Annotated

from minitrain.apps.kinds import HOST, PATH, whole
from minitrain.apps.listening import listen
from minitrain.apps.options import Argument, Option
from minitrain.optional import require

NEEDED = ("starlette", "uvicorn")


def watch(
    run: Annotated[Path, Argument(PATH, "The run's folder, such as runs/1M-corpus.")],
    host: Annotated[str, Option(HOST, "Use 0.0.0.0 for other machines.")] = "127.0.0.1",
    port: Annotated[int, Option(whole(0, 65535), "The port; 0 is any free one.")] = 8001,
) -> None:
    """Watch a run in the browser: losses, ranks and alerts, once a second.

    minitrain watch runs/1M-corpus
    minitrain watch runs/1M-corpus --host 0.0.0.0 --port 9000
    """
    require("the page", *NEEDED, install="'minitrain[serve]'")
    from minitrain.apps.watch.history import open_run

    folder = open_run(run)
    listening = listen(host, port)
    print(f"{folder} is shown at http://{host}:{listening.getsockname()[1]}; Ctrl-C ends it.")
    sys.stdout.flush()
    show(folder, listening)


def show(folder: Path, listening: socket.socket) -> None:
    from minitrain.apps.watch.app import page_server

    try:
        page_server(folder).run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn has shut down, and raises the signal again
        return


def alerts() -> None:
    """Print the alert rules as a file for Prometheus.

    minitrain alerts > alerts.yaml
    minitrain alerts | promtool check rules /dev/stdin
    """
    from minitrain.monitoring.alerts import rules_file

    print(rules_file(), end="")
