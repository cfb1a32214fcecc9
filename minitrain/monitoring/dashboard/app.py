"""The page of a run: `python -m minitrain watch RUN`. It only reads the run's files."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from minitrain.monitoring.dashboard.history import History
from minitrain.monitoring.dashboard.html import ROOM, figure, head, theme
from minitrain.monitoring.dashboard.panels import AT_EVERY_LOOK, MAKERS
from minitrain.monitoring.dashboard.state import heading
from minitrain.monitoring.step_trace import trace_files

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
MARK = "/* theme.css */"
PATIENCE = 5.0  # seconds


class Drawn(NamedTuple):
    """A chart as HTML, the state's number when it was drawn, and the time."""

    text: str
    version: int
    at: float


class Looker:
    """The newest state; one look for all browsers that ask within the same second.

    A browser is sent the charts that it has not `seen`. Painting is what a page costs: numbers,
    alerts and the loss are new at every look, the other charts every `PATIENCE` seconds.
    """

    def __init__(self, folder: Path) -> None:
        self.history, self.lock = History(folder), asyncio.Lock()
        self.shown: tuple[Any, ...] | None = None
        self.version = 0
        self.heading: dict[str, Any] = {}
        self.drawn: dict[str, Drawn] = {}

    async def state(self, seen: int) -> dict[str, Any]:
        async with self.lock:
            await asyncio.to_thread(self._look)
        history = self.history
        found: dict[str, Any] = {"state": history.state, "seen": self.version}
        if seen == self.version:
            return found
        charts = [(i, one.text if one.version > seen else None) for i, one in self.drawn.items()]
        traces = [path.name for path in trace_files(history.folder)]
        run, text = self.heading["run"], head(self.heading)
        return found | {"run": run, "head": text, "charts": charts, "traces": traces}

    def _look(self) -> None:
        history = self.history
        history.look()
        shown = (history.looks, history.tail.began_anew, *history.alerts.firing)
        if shown == self.shown:
            return
        self.shown, self.version = shown, self.version + 1
        self.heading = heading(history)
        now, before = time.monotonic(), self.drawn
        self.drawn = {}
        for name, make in MAKERS.items():
            old = before.get(name)
            waits = old is not None and name not in AT_EVERY_LOOK and history.ended is None
            if waits and now < old.at + PATIENCE:
                self.drawn[name] = old
            elif (panel := make(history)) is not None:
                self.drawn[name] = Drawn(figure(asdict(panel)), self.version, now)


def make_app(folder: Path) -> Starlette:
    looker = Looker(folder)

    async def page(request: Request) -> Response:
        text = files(ROOM).joinpath("page.html").read_text("utf-8").replace(MARK, theme())
        return HTMLResponse(text, headers=PAGE_HEADERS)

    async def state(request: Request) -> Response:
        seen = request.query_params.get("seen", "-1")
        if not seen.lstrip("-").isdigit():
            raise HTTPException(400, f"seen is {seen!r:.40}: give a whole number")
        return JSONResponse(await looker.state(int(seen)))

    async def trace(request: Request) -> Response:
        name = request.path_params["name"]
        found = [path for path in trace_files(folder) if path.name == name]
        if not found:
            raise HTTPException(404, f"no trace is called {name!r:.80}")
        return FileResponse(found[0], media_type="application/json")

    routes = [Route("/", page), Route("/state", state), Route("/trace/{name}", trace)]
    return Starlette(routes=routes)
