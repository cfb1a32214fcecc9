"""Work that ends when who asked for it goes away, and answers that arrive as they are made (SSE).

A server notices that a client has gone only if it listens: work and listening run side by side, and
the first that ends ends the other. `work` is cancelled at its next await; its `finally` frees
what it held.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


async def while_connected(receive: Receive, work: Awaitable[T]) -> T | None:
    """The work's result, or None: the client is gone, and the work is cancelled."""
    working, listening = asyncio.ensure_future(work), asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, listening):
            task.cancel()
        await asyncio.wait({working, listening})


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """`data: {…}` for each of `events`, then `data: [DONE]`, while the client is there.

    `ended` is called in any case, even where the first event was never asked for.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[dict], ended: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events, self.ended = events, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send_all(send))
        finally:
            self.ended()

    async def _send_all(self, send: Send) -> None:
        try:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            async for event in self.events:
                await send(body(json.dumps(event, ensure_ascii=False), more=True))
            await send(body("[DONE]", more=False))
        except OSError:  # it went while it was sent to
            return


def body(data: str, more: bool) -> dict[str, object]:
    text = f"data: {data}\n\n"
    return {"type": "http.response.body", "body": text.encode(), "more_body": more}
