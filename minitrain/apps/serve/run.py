"""uvicorn with an end in two parts: first the requests that are here, then the connections.

SIGTERM ──▶ no new ones ──▶ those here go on ──▶ `grace` seconds ──▶ who is left gets an error

For a moment the door stays open: who has connected, and asks only now, is told 503. uvicorn alone
closes such a connection without a word.
"""

from __future__ import annotations

import asyncio
import socket
import time
from types import FrameType

import uvicorn

from minitrain.apps.serve.app import Served, make_app

OPEN_SECONDS = 1.0  # after SIGTERM, while anybody is connected
LAST_WORDS = 5  # seconds for connections to take their errors, before they are cut


class DrainingServer(uvicorn.Server):
    """`grace`: seconds that requests have when the process is asked to end."""

    def __init__(self, served: Served, grace: float) -> None:
        config = uvicorn.Config(
            make_app(served),
            log_level="warning",
            timeout_graceful_shutdown=int(grace) + LAST_WORDS,
        )
        super().__init__(config)
        self.served, self.grace = served, grace

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """At SIGTERM or Ctrl-C; a second Ctrl-C does not wait."""
        self.served.loop.drain(0.0 if self.should_exit else self.grace)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        until = time.monotonic() + OPEN_SECONDS
        await asyncio.sleep(0.1)  # who has knocked is let in
        while self.server_state.connections and time.monotonic() < until and not self.force_exit:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)
