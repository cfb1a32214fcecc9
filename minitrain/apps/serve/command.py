"""`python -m minitrain serve --model MODEL`: a model behind OpenAI's interface, until Ctrl-C."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minitrain.apps.drafts import DRAFT, DRAFT_HELP, open_drafts
from minitrain.apps.kinds import DEVICE, HOST, Kind, Option, named, read_path, real, whole
from minitrain.apps.models import MODEL, MODEL_HELP
from minitrain.errors import InputError
from minitrain.optional import require

if TYPE_CHECKING:
    from minitrain.apps.serve.app import Served
    from minitrain.finetuning.many import AdapterBank
    from minitrain.model.transformer import Transformer

NEEDED = ("starlette", "uvicorn", "prometheus_client", "pydantic")
BLOCK = 16
KEY_VARIABLE = "MINITRAIN_API_KEY"


def read_adapter(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    return str(named(name)), read_path(folder)


ADAPTER = Kind("NAME=FOLDER", "a name, =, and a folder that is there: french=out", read_adapter)
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
    adapter: Annotated[
        list[tuple[str, Path]] | None,
        Option(
            ADAPTER, "of finetune or PEFT, asked for as model NAME; may be given again", many=True
        ),
    ] = None,
    num_blocks: Annotated[
        int | None, Option(whole(1, 10**7), "of the cache, 16 tokens each", "8 longest texts")
    ] = None,
    budget: Annotated[int, Option(whole(1, 10**6), "tokens a step, at most")] = 512,
    max_running: Annotated[int, Option(whole(1, 10**5), "requests in a step, at most")] = 64,
    max_requests: Annotated[
        int, Option(whole(1, 10**6), "here at once, running or waiting; more are told 429")
    ] = 256,
    draft: Annotated[str | None, Option(DRAFT, DRAFT_HELP, "nobody")] = None,
    draft_length: Annotated[
        int | None,
        Option(whole(1, 64), "tokens guessed at once, at most", "adapted to what is kept"),
    ] = None,
    drawn_drafts: Annotated[
        bool,
        typer.Option(
            "--drawn-drafts",
            help="sampled requests keep more guesses; a seed's text then depends on company",
        ),
    ] = False,
    grace: Annotated[
        float, Option(real(0, 3600), "seconds that requests have to end, after SIGTERM")
    ] = 30.0,
    device: Annotated[
        str | None, Option(DEVICE, "cpu, cuda, mps or xpu", "cuda if there is one")
    ] = None,
) -> None:
    """Serve a model with OpenAI's interface, and a page to talk with it."""
    require("the server", *NEEDED, install="'minitrain[serve]'")
    listening = listen(host, port)
    key = api_key or os.environ.get(KEY_VARIABLE)
    from minitrain.apps.serve.run import DrainingServer

    drafts = (draft, draft_length, drawn_drafts)
    served = open_served(
        model, name, key, num_blocks, budget, max_running, max_requests, device, adapter or [],
        drafts,
    )  # fmt: skip
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
    adapters: Sequence[tuple[str, Path]] = (),
    drafts: tuple[str | None, int | None, bool] = (None, None, False),
) -> Served:
    """`drafts`: by whom, how long, and whether they are drawn (drafts.py)."""
    from minitrain.apps.generate.model import open_speaker
    from minitrain.apps.serve.app import Served
    from minitrain.apps.serve.language import Language
    from minitrain.apps.serve.loop import EngineLoop
    from minitrain.apps.serve.metrics import Metrics
    from minitrain.apps.train.setup import find_device
    from minitrain.inference.engine.engine import Engine

    speaker = open_speaker(model, find_device(device))
    language = Language.of(speaker.files, speaker.begin, speaker.ends)
    longest = -(-speaker.model.config.max_length // BLOCK)
    name = name or os.path.basename(model.rstrip("/"))
    num_blocks = num_blocks or 8 * longest
    make = Engine
    if drafts[0] is not None:  # before the adapters, which no draft has
        from minitrain.inference.speculation.serving import SpeculativeEngine

        draft, *how = drafts
        rows = max(1, min(max_running, num_blocks // longest))  # a draft's cache is dense
        proposer = open_drafts(draft, speaker.model, speaker.begin, rows, *how)
        make = partial(SpeculativeEngine, proposer=proposer)
    bank = open_bank(speaker.model, adapters, name) if adapters else None
    engine = make(
        speaker.model, num_blocks, BLOCK, budget, max_running,
        decode=language.decode, adapters=bank,
    )  # fmt: skip
    loop = EngineLoop(engine, Metrics(), max_requests)
    names = tuple(adapter for adapter, _ in adapters)
    return Served(name, language, loop, api_key, adapters=names)


def open_bank(model: Transformer, adapters: Sequence[tuple[str, Path]], name: str) -> AdapterBank:
    """All of them, with pages for all in one batch."""
    from minitrain.finetuning.many import AdapterBank, factors_in
    from minitrain.finetuning.methods import ALL_LINEAR
    from minitrain.finetuning.model import find_layers

    names = [name, *(adapter for adapter, _ in adapters)]
    if twice := [each for each in names if names.count(each) > 1]:
        raise InputError(f"--adapter: '{twice[0]}' would be two models: give each its own name")
    factors = {adapter: factors_in(folder, model) for adapter, folder in adapters}
    layers = dict(find_layers(model, ALL_LINEAR)).values()
    numbers = sum(layer.in_features + layer.out_features for layer in layers)
    pages = 1 + sum(each.rank for each in factors.values())  # the first is of zeros
    bank = AdapterBank(model, pages * numbers * model.embed.weight.itemsize)
    for adapter, each in factors.items():
        bank.add(adapter, each)
    return bank
