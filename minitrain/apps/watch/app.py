"""The page of `python -m minitrain watch RUN`, and its server; both only read the run's files."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from minitrain.apps.listening import PAGE_HEADERS
from minitrain.apps.watch.history import History
from minitrain.apps.watch.page import ROOM, figure, heading, parts, theme
from minitrain.apps.watch.panels import MAKERS
from minitrain.monitoring.step_trace import trace_files

MARK = "/* theme.css */"
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # also through a proxy
EVERY = 1.0  # seconds between two looks at the run
PATIENCE = 5.0  # seconds between pictures, while each step is its own point


class Drawn(NamedTuple):
    """A chart as HTML, and its state number; its picture, and when it was painted."""

    text: str
    picture: str
    version: int
    at: float


class Looker:
    """The newest state, read once for all browsers that ask within the same second.

    A browser is sent the charts that it has not `seen`. Painting dominates the page's cost: text,
    alerts and the loss update at every look, pictures every few seconds.
    """

    def __init__(self, folder: Path) -> None:
        self.history, self.lock = History(folder), asyncio.Lock()
        self.shown: tuple[Any, ...] | None = None
        self.version = 0
        self.heading: dict[str, Any] = {}
        self.drawn: dict[str, Drawn] = {}

    async def changes(self, seen: int = -1) -> tuple[int, dict[str, Any] | None]:
        """The state's number and the page's parts; None instead of parts already `seen`."""
        async with self.lock:
            await asyncio.to_thread(self._look)
        if seen == self.version:
            return seen, None
        charts = [(i, one.text if one.version > seen else None) for i, one in self.drawn.items()]
        traces = [path.name for path in trace_files(self.history.folder)]
        return self.version, {**parts(self.heading, traces), "charts": charts}

    async def events(self, over: Callable[[], bool]) -> AsyncIterator[str]:
        """Server-sent events, at most one a second, until it is `over`."""
        seen = -1
        while not over():
            seen, found = await self.changes(seen)
            if found is not None:
                yield f"data: {json.dumps(found)}\n\n"
            await asyncio.sleep(EVERY)

    def _look(self) -> None:
        history = self.history
        history.look()
        shown = (history.looks, history.tail.began_anew, history.state, *history.alerts.firing)
        if shown == self.shown:
            return
        self.shown, self.version = shown, self.version + 1
        self.heading = heading(history)
        drawn = {name: self._draw(name) for name in MAKERS}
        self.drawn = {name: one for name, one in drawn.items() if one is not None}

    def _draw(self, name: str) -> Drawn | None:
        old, now = self.drawn.get(name), time.monotonic()
        stays = old is not None and now < old.at + _patience(self.history, name)
        if stays and name != "loss":
            return old
        panel = MAKERS[name](self.history)
        if panel is None:
            return None
        if stays:  # same picture, new number
            panel, now = replace(panel, picture=old.picture), old.at
        return Drawn(figure(asdict(panel)), panel.picture, self.version, now)


def _patience(history: History, name: str) -> float:
    """Seconds before a picture is painted again; longer once many steps share a point."""
    if history.ended is not None:
        return 0.0
    if history.curves["loss"].stride > 1:
        return 2 * PATIENCE
    return 0.0 if name == "loss" else PATIENCE


def make_app(folder: Path, over: Callable[[], bool] = lambda: False) -> Starlette:
    """`over`: whether the server shuts down; it waits for open streams."""
    looker = Looker(folder)

    async def page(request: Request) -> Response:
        text = files(ROOM).joinpath("page.html").read_text("utf-8").replace(MARK, theme())
        return HTMLResponse(text, headers=PAGE_HEADERS)

    async def changes(request: Request) -> Response:
        events = looker.events(over)
        return StreamingResponse(events, media_type="text/event-stream", headers=STREAM_HEADERS)

    async def trace(request: Request) -> Response:
        name = request.path_params["name"]
        found = [path for path in trace_files(folder) if path.name == name]
        if not found:
            raise HTTPException(404, f"no trace is called {name!r:.80}")
        return FileResponse(found[0], media_type="application/json")

    routes = [Route("/", page), Route("/changes", changes), Route("/trace/{name}", trace)]
    return Starlette(routes=routes)


GRACE_SECONDS = 3  # for open streams
TICK = 0.5  # seconds


class SlowTicks(uvicorn.Server):
    """Checks for shutdown twice a second; uvicorn's ten times cost as much as the page."""

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            await asyncio.sleep(TICK)
            ticks += round(10 * TICK)  # it counts tenths of a second


def page_server(folder: Path) -> uvicorn.Server:
    app = make_app(folder, over=lambda: server.should_exit)
    server = SlowTicks(
        uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=GRACE_SECONDS)
    )
    return server
