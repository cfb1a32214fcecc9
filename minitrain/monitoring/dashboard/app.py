"""The page of a run: `python -m minitrain watch RUN`. It only reads the run's files."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from minitrain.monitoring.dashboard.history import History
from minitrain.monitoring.dashboard.html import ROOM, body, theme
from minitrain.monitoring.dashboard.state import state_of
from minitrain.monitoring.step_trace import trace_files

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
MARK = "/* theme.css */"


class Looker:
    """The newest state; one look for all browsers that ask within the same second."""

    def __init__(self, folder: Path) -> None:
        self.history, self.lock = History(folder), asyncio.Lock()
        self.shown: tuple[Any, ...] = ()
        self.version = 0
        self.body = ""

    async def state(self, seen: int) -> dict[str, Any]:
        """Without a body where the browser has `seen` it."""
        async with self.lock:
            await asyncio.to_thread(self._look)
        history = self.history
        found = {"state": history.state, "seen": self.version}
        if seen == self.version:
            return found
        traces = [path.name for path in trace_files(history.folder)]
        return found | {"run": history.folder.resolve().name, "body": self.body, "traces": traces}

    def _look(self) -> None:
        self.history.look()
        shown = (self.history.looks, self.history.tail.began_anew, *self.history.alerts.firing)
        if shown != self.shown or not self.version:
            self.shown, self.version = shown, self.version + 1
            self.body = body(state_of(self.history))


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
