"""The sweep behind `load`: one rate after the other, each until its last answer has ended."""

from __future__ import annotations

from dataclasses import replace

import typer
from tqdm import tqdm

from minitrain.apps.load.asked import Asked
from minitrain.apps.load.offered import Server, offer, served_model, waited_for
from minitrain.apps.load.show import Measured, report
from minitrain.errors import InputError
from minitrain.inference.load import (
    Ask,
    Lengths,
    Target,
    asks,
    lengths_in,
    lengths_of_trace,
    summary,
)
from minitrain.words import count_text

INTERRUPTED = 130


def run(asked: Asked) -> None:
    """Prints, draws and writes; after Ctrl-C, of the rates that were complete."""
    server = Server(asked.url, asked.model, asked.api_key, not asked.may_stop, asked.timeout)
    measured: Measured = []
    try:
        waited_for(sweep(asked, server, lengths(asked), measured))
    except KeyboardInterrupt:
        if measured:
            report(asked, measured)
        raise typer.Exit(INTERRUPTED) from None
    report(asked, measured)


def lengths(asked: Asked) -> list[Lengths]:
    if asked.trace is not None:
        return lengths_of_trace(asked.trace, asked.requests, asked.scale)
    return lengths_in(asked.requests, asked.prompt_tokens, asked.new_tokens, asked.seed)


async def sweep(asked: Asked, server: Server, lengths: list[Lengths], measured: Measured) -> None:
    """Appends each rate's figures to `measured`, as soon as they are known."""
    server = replace(server, model=server.model or await served_model(server))
    await try_longest(asked, server, lengths)
    target = Target(asked.first_token, asked.per_token)
    total = len(asked.rates) * len(lengths)
    with tqdm(total=total, unit="request", leave=False, disable=None) as bar:  # not into a file
        for rate in asked.rates:
            bar.set_description(f"{count_text(rate)}/s")
            told = await offer(server, drawn(asked, lengths, rate), lambda _: bar.update())
            measured.append((rate, summary(told, target)))


def drawn(asked: Asked, lengths: list[Lengths], rate: float) -> list[Ask]:
    shape = asked.vocabulary, asked.seed, asked.shared, asked.prefixes
    return asks(lengths, rate, *shape)


async def try_longest(asked: Asked, server: Server, lengths: list[Lengths]) -> None:
    """Before anything is measured: what no server could take is told at once."""
    longest = max(lengths, key=sum)
    probe = asks([longest], 1.0, asked.vocabulary, asked.seed + 1, asked.shared)
    (told,) = await offer(server, probe)
    if told.failed is not None:
        what = f"a prompt of {longest[0] + asked.shared} tokens and {longest[1]} new ones"
        raise InputError(f"{server.base} does not serve the longest request, {what}: {told.failed}")
