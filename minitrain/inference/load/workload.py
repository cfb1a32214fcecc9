"""Requests as they arrive: when, with what prompt, for how many tokens.

Users do not wait for one another, so arrivals are a Poisson process: gaps are exponential with mean
1 / rate. The load is *open*: a request comes at its time whether the server keeps up or not. (A
client that sends its next request after the last answer slows down with the server, and so never
sees the queue that it came to measure.)

    rate 2/s   |a    |b |c        |d  |e     |f        seconds →
               prompts: [shared prefix 0|own a] [prefix 1|own b] [prefix 0|own c] …

Lengths decide what is measured: a trace's are read from a file, in its order, and begin again at
its end. Other rates have other tokens: with the same ones, a server that keeps prefixes would have
computed all of the second rate's prompts during the first.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle, islice
from pathlib import Path

from minitrain.errors import InputError

Lengths = tuple[int, int]  # tokens of a prompt, and of its answer
Range = tuple[int, int]  # both ends belong to it
SPECIAL = 3  # the first tokens of most vocabularies are no words
COLUMNS = {  # as ours, and as the traces of Azure's LLM services, are written
    "prompt": ("prompt_tokens", "ContextTokens"),
    "answer": ("new_tokens", "GeneratedTokens"),
}


@dataclass(frozen=True)
class Ask:
    """At `at` seconds from the beginning, for `new_tokens` tokens after `prompt`."""

    at: float
    prompt: tuple[int, ...]
    new_tokens: int


def lengths_in(count: int, prompt: Range, new: Range, seed: int) -> list[Lengths]:
    """So many pairs, each length from its range, all alike likely."""
    chance = random.Random(f"lengths {seed}")
    return [(chance.randint(*prompt), chance.randint(*new)) for _ in range(count)]


def lengths_of_trace(path: Path, count: int, scale: float = 1.0) -> list[Lengths]:
    """The first `count` rows of a CSV file, times `scale`, again from the top where it ends."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        names = [column(path, what, reader.fieldnames or []) for what in COLUMNS]
        rows = []
        for row in islice(reader, count):
            rows.append(tuple(length(path, reader.line_num, row[name]) for name in names))
    if not rows:
        raise InputError(f"{path} has no row below its head: a trace has one for each request")
    scaled = [tuple(max(1, round(tokens * scale)) for tokens in row) for row in rows]
    return list(islice(cycle(scaled), count))


def column(path: Path, what: str, there: Sequence[str]) -> str:
    names = COLUMNS[what]
    found = [name for name in names if name in there]
    if not found:
        raise InputError(
            f"{path} has no column for the {what}'s tokens: name it {' or '.join(names)}"
        )
    return found[0]


def length(path: Path, line: int, text: str | None) -> int:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value <= 10**7:
        raise InputError(f"{path}, line {line}: {text!r:.40} is no number of tokens")
    return round(value)


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Seconds from the beginning, the first at 0; all at once where `rate` is inf."""
    chance = random.Random(f"arrivals {seed}")
    gaps = [chance.expovariate(1.0) / rate for _ in range(count - 1)]
    return list(accumulate(gaps, initial=0.0))


def asks(
    lengths: Sequence[Lengths],
    rate: float,
    vocabulary: int,
    seed: int,
    shared: int = 0,
    prefixes: int = 1,
) -> list[Ask]:
    """A request for each of `lengths`, `rate` of them a second; before its own prompt each has one
    of `prefixes` beginnings of `shared` tokens. The same arguments give the same requests."""
    if vocabulary <= SPECIAL:
        raise InputError(
            f"a vocabulary of {vocabulary} has no words: give {SPECIAL + 1} tokens or more"
        )
    chance = random.Random(f"prompts {seed} {rate}")

    def words(count: int) -> list[int]:
        return chance.choices(range(SPECIAL, vocabulary), k=count)

    beginnings = [words(shared) for _ in range(prefixes)]
    return [
        Ask(at, (*chance.choice(beginnings), *words(prompt)), new)
        for at, (prompt, new) in zip(arrivals(len(lengths), rate, seed), lengths)
    ]
