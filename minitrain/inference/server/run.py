"""uvicorn with an end in two parts: first the requests that are here, then the connections.

SIGTERM ──▶ no new ones ──▶ those here go on ──▶ `grace` seconds ──▶ who is left gets an error
"""

from __future__ import annotations

from types import FrameType

import uvicorn

from minitrain.inference.server.app import Served, make_app

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
