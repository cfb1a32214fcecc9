"""The page's server: it tells the browsers until it ends, and costs a run next to nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import uvicorn

from minitrain.apps.watch.app import make_app

GRACE_SECONDS = 3  # for a browser that is being told
TICK = 0.5  # seconds


class SlowTicks(uvicorn.Server):
    """Looks twice a second whether it should end; uvicorn's own ten cost as much as the page."""

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
