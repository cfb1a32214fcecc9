"""`python -m minitrain serve --model MODEL`: a model behind OpenAI's interface, until Ctrl-C."""

from __future__ import annotations

import os
import socket
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from minitrain.commands.kinds import DEVICE, HOST, Kind, Option, named, real, whole
from minitrain.commands.models import MODEL, MODEL_HELP
from minitrain.errors import InputError

if TYPE_CHECKING:
    from minitrain.inference.server.app import Served

NEEDED = ("starlette", "uvicorn", "prometheus_client", "pydantic", "jinja2")
BLOCK = 16
KEY_VARIABLE = "MINITRAIN_API_KEY"
NAME = Kind("NAME", "a name", lambda text: str(named(text)))
KEY = Kind("KEY", "a text without spaces", lambda text: str(named(text)))


def serve(
    model: Annotated[str, Option(MODEL, MODEL_HELP)],
    host: Annotated[str, Option(HOST, "0.0.0.0 for other machines; give a key then")] = "127.0.0.1",
    port: Annotated[int, Option(whole(0, 65535), "0: any that is free")] = 8000,
    api_key: Annotated[
        str | None, Option(KEY, "what clients must send", f"${KEY_VARIABLE}, else none")
    ] = None,
    name: Annotated[str | None, Option(NAME, "the model's name for clients", "the model's")] = None,
    num_blocks: Annotated[
        int | None, Option(whole(1, 10**7), "of the cache, 16 tokens each", "8 longest texts")
    ] = None,
    budget: Annotated[int, Option(whole(1, 10**6), "tokens a step, at most")] = 512,
    max_running: Annotated[int, Option(whole(1, 10**5), "requests in a step, at most")] = 64,
    max_requests: Annotated[
        int, Option(whole(1, 10**6), "here at once, running or waiting; more are told 429")
    ] = 256,
    grace: Annotated[
        float, Option(real(0, 3600), "seconds that requests have to end, after SIGTERM")
    ] = 30.0,
    device: Annotated[
        str | None, Option(DEVICE, "cpu, cuda, mps or xpu", "cuda if there is one")
    ] = None,
) -> None:
    """Serve a model with OpenAI's interface, and a page to talk with it."""
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        raise InputError(
            f"{', '.join(missing)} is not installed, and the server needs it: "
            "pip install 'minitrain[serve]'"
        )
    listening = listen(host, port)
    key = api_key or os.environ.get(KEY_VARIABLE)
    from minitrain.inference.server.run import DrainingServer

    served = open_served(model, name, key, num_blocks, budget, max_running, max_requests, device)
    where = f"http://{host}:{listening.getsockname()[1]}"
    print(f"{served.name} is served at {where} (a page) and {where}/v1; Ctrl-C ends it.")
    sys.stdout.flush()
    try:
        DrainingServer(served, grace).run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn has ended well, and tells whoever waits for the signal
        return


def listen(host: str, port: int) -> socket.socket:
    """Before the model is loaded: that takes long, and a taken port is told at once."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except OSError as error:
        raise InputError(
            f"--port {port} at {host} cannot be used ({error.strerror}): give another, or 0 for "
            "any that is free"
        ) from None
    return listening


def open_served(
    model: str,
    name: str | None,
    api_key: str | None,
    num_blocks: int | None,
    budget: int,
    max_running: int,
    max_requests: int,
    device: str | None,
) -> Served:
    from minitrain.commands.generate.model import open_speaker
    from minitrain.commands.train.setup import find_device
    from minitrain.inference.engine.engine import Engine
    from minitrain.inference.server.app import Served
    from minitrain.inference.server.language import Language
    from minitrain.inference.server.loop import EngineLoop
    from minitrain.inference.server.metrics import Metrics

    speaker = open_speaker(model, find_device(device))
    language = Language.of(speaker.files, speaker.begin, speaker.ends)
    longest = -(-speaker.model.config.max_length // BLOCK)
    engine = Engine(
        speaker.model, num_blocks or 8 * longest, BLOCK, budget, max_running, decode=speaker.decode
    )
    loop = EngineLoop(engine, Metrics(), max_requests)
    return Served(name or os.path.basename(model.rstrip("/")), language, loop, api_key)
