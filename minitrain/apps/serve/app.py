"""The server's routes and API key, and uvicorn with a graceful shutdown.

    SIGTERM ──▶ no new requests ──▶ `grace` seconds for those in flight ──▶ errors for the rest

The server then keeps accepting briefly: a request on an open connection gets 503, where uvicorn
alone would close it silently.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from types import FrameType

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from minitrain.apps.language import Language
from minitrain.apps.listening import PAGE_HEADERS
from minitrain.apps.serve.completing import Completer
from minitrain.apps.serve.errors import Refused, read_body, refuse, refuse_address
from minitrain.apps.serve.loop import EngineLoop, Unavailable
from minitrain.apps.serve.metrics import state_of
from minitrain.apps.serve.schemas import AskedChat, AskedCompletion

BODY_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Served:
    """A model and its adapters by name; with a key, only for clients that send it."""

    name: str
    language: Language
    loop: EngineLoop
    api_key: str | None = None
    body_bytes: int = BODY_BYTES
    adapters: tuple[str, ...] = ()


def make_app(served: Served) -> Starlette:
    """The app for uvicorn or any ASGI server; the engine's thread lives as long as the app."""
    completer = Completer(served.name, served.language, served.loop, served.adapters)
    known = {name: model_object(served, name) for name in (served.name, *served.adapters)}

    async def completions(request: Request) -> Response:
        check_key(request, served.api_key)
        asked = await read_body(request, AskedCompletion, served.body_bytes)
        return await completer.complete(request, asked)

    async def chat(request: Request) -> Response:
        check_key(request, served.api_key)
        asked = await read_body(request, AskedChat, served.body_bytes)
        return await completer.chat(request, asked)

    async def models(request: Request) -> Response:
        check_key(request, served.api_key)
        return JSONResponse({"object": "list", "data": list(known.values())})

    async def model(request: Request) -> Response:
        check_key(request, served.api_key)
        completer.check_served(request.path_params["name"])
        return JSONResponse(known[request.path_params["name"]])

    async def health(request: Request) -> Response:
        if served.loop.ended is not None:
            return Refused(503, str(served.loop.ended)).response
        return JSONResponse({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return Response(served.loop.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def state(request: Request) -> Response:
        try:
            now = await served.loop.call(lambda: state_of(served.loop.engine))
        except Unavailable as error:
            return Refused(503, str(error)).response
        chats, locked = served.language.chat is not None, served.api_key is not None
        return JSONResponse({"model": served.name, "chat": chats, "key": locked, **now})

    async def page(request: Request) -> Response:
        text = files("minitrain.apps.serve").joinpath("page.html").read_text("utf-8")
        return HTMLResponse(text, headers=PAGE_HEADERS)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        served.loop.start()
        yield
        served.loop.stop()

    routes = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/state", state),
        Route("/", page),
    ]
    handlers = {Refused: refuse, HTTPException: refuse_address}
    return Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)


def model_object(served: Served, name: str) -> dict[str, object]:
    """A model in OpenAI's form; an adapter's parent is the model."""
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "minitrain",
        "max_model_len": served.loop.engine.config.max_length,
        "parent": None if name == served.name else served.name,
    }


def check_key(request: Request, key: str | None) -> None:
    """Compares in constant time."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if key is None:
        return
    sent = given.strip().encode("latin-1")  # the raw bytes, which starlette decoded as latin-1
    if kind.lower() != "bearer" or not hmac.compare_digest(sent, key.encode()):
        raise Refused(401, "the API key is missing or wrong: send Authorization: Bearer KEY")


OPEN_SECONDS = 1.0  # after SIGTERM, while any client is connected
LAST_WORDS = 5  # seconds for connections to read their errors, before they are cut


class DrainingServer(uvicorn.Server):
    """`grace`: seconds for the requests in flight after SIGTERM."""

    def __init__(self, served: Served, grace: float) -> None:
        config = uvicorn.Config(
            make_app(served),
            log_level="warning",
            timeout_graceful_shutdown=int(grace) + LAST_WORDS,
        )
        super().__init__(config)
        self.served, self.grace = served, grace

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drains at SIGTERM or Ctrl-C; a second one does not wait."""
        self.served.loop.drain(0.0 if self.should_exit else self.grace)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        until = time.monotonic() + OPEN_SECONDS
        await asyncio.sleep(0.1)  # accepts pending connections
        while self.server_state.connections and time.monotonic() < until and not self.force_exit:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)
