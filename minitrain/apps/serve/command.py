"""`python -m minitrain serve --model MODEL`: a model behind OpenAI's interface, until Ctrl-C."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from minitrain.apps.kinds import DEVICE, HOST, Kind, named, read_path, real, whole
from minitrain.apps.listening import listen
from minitrain.apps.models import MODEL, MODEL_HELP
from minitrain.apps.options import Flag, Option
from minitrain.errors import InputError
from minitrain.optional import require

if TYPE_CHECKING:
    from minitrain.apps.serve.app import Served
    from minitrain.finetuning.many import AdapterBank
    from minitrain.inference.speculation.proposer import Proposer
    from minitrain.inference.speculation.serving import EngineDrafts
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
DRAFT = Kind("DRAFT", "ngram, int8, layers-4, medusa, eagle or a model", lambda t: str(named(t)))


@dataclass(frozen=True)
class ServeOptions:
    """The served model, its adapters, and the engine's limits."""

    model: Annotated[str, Option(MODEL, MODEL_HELP)]
    api_key: Annotated[
        str | None, Option(KEY, "The key that clients must send.", f"${KEY_VARIABLE}, else none")
    ] = None
    name: Annotated[
        str | None, Option(NAME, "The name of the model for clients.", "the model's")
    ] = None
    adapter: Annotated[
        list[tuple[str, Path]] | None,
        Option(ADAPTER, "An adapter that clients request as model NAME; repeatable.", many=True),
    ] = None
    num_blocks: Annotated[
        int | None,
        Option(whole(1, 10**7), "Blocks of 16 tokens in the cache.", "8 longest sequences"),
    ] = None
    budget: Annotated[int, Option(whole(1, 10**6), "Most tokens in a step.")] = 512
    max_running: Annotated[int, Option(whole(1, 10**5), "Most requests in a step.")] = 64
    max_requests: Annotated[
        int, Option(whole(1, 10**6), "Most requests in flight; more are refused with 429.")
    ] = 256
    draft: Annotated[
        str | None,
        Option(
            DRAFT,
            "Speculate with ngram, int8 or another format, layers-N, medusa or eagle (trained for "
            "a minute, the first time), or a model of the same tokenizer.",
            "no speculation",
        ),
    ] = None
    draft_length: Annotated[
        int | None,
        Option(whole(1, 64), "Most tokens of a draft.", "adapted to the acceptance rate"),
    ] = None
    drawn_drafts: Annotated[
        bool,
        Flag(
            "Accept more drafts of sampled requests; the text of a seed then depends on the "
            "other requests."
        ),
    ] = False
    device: Annotated[
        str | None, Option(DEVICE, "One of cpu, cuda, mps and xpu.", "cuda if there is one")
    ] = None


def serve(
    host: Annotated[
        str, Option(HOST, "Use 0.0.0.0 for other machines, and give a key.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(whole(0, 65535), "The port; 0 is any free one.")] = 8000,
    grace: Annotated[
        float, Option(real(0, 3600), "Seconds for requests to finish after SIGTERM.")
    ] = 30.0,
    **fields: Any,
) -> None:
    """Serve a model with OpenAI's interface, and a page to talk with it.

    minitrain serve --model stories15M
    minitrain serve --model runs/1M-corpus --port 8080 --draft ngram
    """
    require("the server", *NEEDED, install="'minitrain[serve]'")
    options, listening = ServeOptions(**fields), listen(host, port)
    from minitrain.apps.serve.app import DrainingServer

    served = open_served(options)
    where = f"http://{host}:{listening.getsockname()[1]}"
    print(f"{served.name} is served at {where} (a page) and {where}/v1; Ctrl-C ends it.")
    sys.stdout.flush()
    try:
        DrainingServer(served, grace).run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn has shut down, and raises the signal again
        return


def open_served(options: ServeOptions) -> Served:
    from minitrain.apps.language import open_with_language
    from minitrain.apps.serve.app import Served
    from minitrain.apps.serve.loop import EngineLoop
    from minitrain.apps.serve.metrics import Metrics
    from minitrain.inference.engine.engine import Engine

    model, language = open_with_language(options.model, options.device)
    longest = -(-model.config.max_length // BLOCK)
    blocks = options.num_blocks or 8 * longest
    name = options.name or os.path.basename(options.model.rstrip("/"))
    make = Engine
    if options.draft is not None:  # before the adapters, which drafts do not use
        rows = max(1, min(options.max_running, blocks // longest))  # a draft's cache is dense
        how = options.draft_length, options.drawn_drafts
        from minitrain.inference.speculation.serving import SpeculativeEngine

        drafts = open_drafts(options.draft, model, language.begin, rows, *how)
        make = partial(SpeculativeEngine, proposer=drafts)
    adapters = options.adapter or []
    bank = open_bank(model, adapters, name) if adapters else None
    engine = make(
        model, blocks, BLOCK, options.budget, options.max_running,
        decode=language.decode, adapters=bank,
    )  # fmt: skip
    loop = EngineLoop(engine, Metrics(), options.max_requests)
    key = options.api_key or os.environ.get(KEY_VARIABLE)
    return Served(name, language, loop, key, adapters=tuple(name for name, _ in adapters))


def open_bank(model: Transformer, adapters: Sequence[tuple[str, Path]], name: str) -> AdapterBank:
    """Loads all adapters, with pages for all of them in one batch."""
    from minitrain.finetuning.many import AdapterBank, factors_in
    from minitrain.finetuning.methods import ALL_LINEAR
    from minitrain.finetuning.model import find_layers

    names = [name, *(adapter for adapter, _ in adapters)]
    if twice := [each for each in names if names.count(each) > 1]:
        raise InputError(f"--adapter: '{twice[0]}' would be two models: give each its own name")
    factors = {adapter: factors_in(folder, model) for adapter, folder in adapters}
    layers = dict(find_layers(model, ALL_LINEAR)).values()
    numbers = sum(layer.in_features + layer.out_features for layer in layers)
    pages = 1 + sum(each.rank for each in factors.values())  # the first is the page of zeros
    bank = AdapterBank(model, pages * numbers * model.embed.weight.itemsize)
    for adapter, each in factors.items():
        bank.add(adapter, each)
    return bank


# --- speculation ---


def open_drafts(
    name: str,
    target: Transformer,
    begin: Sequence[int],
    rows: int,
    length: int | None = None,
    drawn: bool = False,
) -> EngineDrafts:
    """Drafts for an engine of `target`; `length` None adapts to acceptance and measured costs."""
    from minitrain.inference.speculation.named import is_named, measured_length, named_draft
    from minitrain.inference.speculation.serving import EngineDrafts

    target.requires_grad_(False)
    if is_named(name):
        proposer = named_draft(name, target, begin, rows)
    else:
        proposer = model_draft(name, target, rows)
    return EngineDrafts(proposer, length or measured_length(target, proposer, begin), drawn)


def model_draft(name: str, target: Transformer, rows: int) -> Proposer:
    from minitrain.apps.models import open_model
    from minitrain.inference.speculation.draft_model import DraftModel

    weight = target.embed.weight
    model, _ = open_model(name, weight.device, weight.dtype)
    if model.config.vocab_size != target.config.vocab_size:
        raise InputError(
            f"--draft {name} has a vocabulary of {model.config.vocab_size:,} tokens and the model "
            f"one of {target.config.vocab_size:,}: give a draft of the same tokenizer, or ngram, "
            "int8, medusa or eagle, which are made of the model itself"
        )
    longest = min(model.config.max_length, target.config.max_length)
    return DraftModel(model.requires_grad_(False), rows, longest)
