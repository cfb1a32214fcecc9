"""`python -m minitrain load --url URL`: throughput against latency, rate by rate, of any server."""

from __future__ import annotations

import math
import os
import secrets
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from minitrain.apps.kinds import (
    FILE,
    NEW_FILE,
    PICTURE,
    SEED,
    Kind,
    Option,
    named,
    real,
    several,
    whole,
)
from minitrain.apps.load.asked import Asked
from minitrain.optional import require

KEY_VARIABLE = "OPENAI_API_KEY"
MOST_TOKENS = 10**6


def read_url(text: str) -> str:
    """With a host; whether somebody is there is seen when it is asked."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or not text.isprintable():
        raise ValueError
    parts.port  # noqa: B018  (a ValueError where it is no number)
    return text


def read_rate(text: str) -> float:
    return math.inf if text == "inf" else real(0.001, 1e6).read(text)


def read_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    ends = whole(1, MOST_TOKENS).read(low), whole(1, MOST_TOKENS).read(high or low)
    if ends[0] > ends[1]:
        raise ValueError
    return ends


URL = Kind("URL", "an address such as http://127.0.0.1:8000", read_url)
RATE = Kind("RATE", "requests a second from 0.001 to 1e6, or inf for all at once", read_rate)
RANGE = Kind("LOW-HIGH", "tokens, 32, or a range with the lower end first, 8-64", read_range)
TEXT = Kind("TEXT", "a text that is not empty", lambda text: str(named(text)))
SECONDS = real(1e-6, 1e6)


def load(
    url: Annotated[str, Option(URL, "of a server with OpenAI's interface: ours, vLLM's")] = (
        "http://127.0.0.1:8000"
    ),
    model: Annotated[str | None, Option(TEXT, "its name there", "the first it serves")] = None,
    api_key: Annotated[
        str | None, Option(TEXT, "what the server wants to see", f"${KEY_VARIABLE}, else none")
    ] = None,
    rates: Annotated[
        list[float], Option(several(RATE), "requests a second, one rate after the other")
    ] = "1,2,4,8",
    requests: Annotated[int, Option(whole(1, 10**6), "at each rate")] = 64,
    prompt_tokens: Annotated[tuple, Option(RANGE, "of each prompt, drawn from the range")] = "8-64",
    new_tokens: Annotated[tuple, Option(RANGE, "of each answer")] = "16-64",
    trace: Annotated[
        Path | None,
        Option(FILE, "lengths from a CSV file: prompt_tokens, new_tokens", "the ranges above"),
    ] = None,
    scale: Annotated[float, Option(real(1e-6, 1e6), "times the trace's lengths")] = 1.0,
    shared: Annotated[
        int, Option(whole(0, MOST_TOKENS), "tokens that prompts begin alike with, besides")
    ] = 0,
    prefixes: Annotated[int, Option(whole(1, 10**6), "how many such beginnings there are")] = 1,
    vocabulary: Annotated[
        int, Option(whole(4, 10**9), "prompts are of tokens below this number")
    ] = 1000,
    may_stop: Annotated[
        bool,
        typer.Option("--may-stop", help="answers may end early: servers without ignore_eos"),
    ] = False,
    first_token: Annotated[
        float, Option(SECONDS, "to the first token, at most, for goodput")
    ] = 1.0,
    per_token: Annotated[
        float, Option(SECONDS, "from token to token in the mean, at most, for goodput")
    ] = 0.1,
    seed: Annotated[
        int | None,
        Option(SEED, "of arrivals, lengths and prompts; again the same: prompts are cached", "new"),
    ] = None,
    timeout: Annotated[float, Option(SECONDS, "without a word, and a request has failed")] = 600.0,
    picture: Annotated[Path | None, Option(PICTURE, "also draw it: .png, .pdf or .svg")] = None,
    json: Annotated[Path | None, Option(NEW_FILE, "also write the figures to this file")] = None,
) -> None:
    """Ask a server at rising rates, and see throughput, latency and goodput."""
    require("load", "httpx", install="'minitrain[serve]'")
    key = api_key or os.environ.get(KEY_VARIABLE)
    chosen = secrets.randbelow(2**32) if seed is None else seed
    run(Asked(
        url, model, key, rates, requests, prompt_tokens, new_tokens, trace, scale, shared,
        prefixes, vocabulary, may_stop, first_token, per_token, chosen, timeout, picture, json,
    ))  # fmt: skip


def run(asked: Asked) -> None:
    from minitrain.apps.load.run import run

    run(asked)
