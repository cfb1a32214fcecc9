"""Options of `python -m minitrain load`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from minitrain.apps.kinds import FILE, NEW_FILE, PICTURE, SEED, Kind, named, real, several, whole
from minitrain.apps.options import Flag, Option

KEY_VARIABLE = "OPENAI_API_KEY"
MOST_TOKENS = 10**6


def read_url(text: str) -> str:
    """An address with a host, which need not be reachable yet."""
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


@dataclass(frozen=True)
class LoadOptions:
    url: Annotated[str, Option(URL, "A server with OpenAI's interface, such as ours or vLLM.")] = (
        "http://127.0.0.1:8000"
    )
    model: Annotated[str | None, Option(TEXT, "The model's name there.", "the first it serves")] = (
        None
    )
    api_key: Annotated[
        str | None, Option(TEXT, "The server's API key.", f"${KEY_VARIABLE}, else none")
    ] = None
    rates: Annotated[
        list[float], Option(several(RATE), "Requests a second, one rate after the other.")
    ] = "1,2,4,8"
    requests: Annotated[int, Option(whole(1, 10**6), "Requests at each rate.")] = 64
    prompt_tokens: Annotated[tuple, Option(RANGE, "Tokens of a prompt, drawn from a range.")] = (
        "8-64"
    )
    new_tokens: Annotated[tuple, Option(RANGE, "Tokens of an answer, drawn from a range.")] = (
        "16-64"
    )
    trace: Annotated[
        Path | None,
        Option(FILE, "Lengths from a CSV file: prompt_tokens, new_tokens.", "the ranges above"),
    ] = None
    scale: Annotated[float, Option(real(1e-6, 1e6), "A factor of the trace's lengths.")] = 1.0
    shared: Annotated[
        int, Option(whole(0, MOST_TOKENS), "Tokens of a prefix that prompts share, besides.")
    ] = 0
    prefixes: Annotated[int, Option(whole(1, 10**6), "The number of such prefixes.")] = 1
    vocabulary: Annotated[
        int, Option(whole(4, 10**9), "Prompts are of token ids below this number.")
    ] = 1000
    may_stop: Annotated[bool, Flag("Let answers end early, for servers without ignore_eos.")] = (
        False
    )
    first_token: Annotated[
        float, Option(SECONDS, "The goodput's limit of seconds to the first token.")
    ] = 1.0
    per_token: Annotated[
        float, Option(SECONDS, "The goodput's limit of mean seconds between tokens.")
    ] = 0.1
    seed: Annotated[
        int | None,
        Option(SEED, "Seed of arrivals, lengths and prompts; a repeated one hits caches.", "new"),
    ] = None
    timeout: Annotated[float, Option(SECONDS, "Silent seconds after which a request fails.")] = (
        600.0
    )
    picture: Annotated[
        Path | None, Option(PICTURE, "Also draw it to a .png, .pdf or .svg file.")
    ] = None
    json: Annotated[Path | None, Option(NEW_FILE, "Also write the figures to this file.")] = None
