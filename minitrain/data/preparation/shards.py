"""Documents that stay to a tokenizer and shards of tokens, each shard saved when it is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from minitrain.data.preparation.blocks import as_lines
from minitrain.data.preparation.documents import Row
from minitrain.data.preparation.drops import size_bytes
from minitrain.data.preparation.settings import Settings
from minitrain.data.stream.token_files import Shard, shard_groups, write_shard
from minitrain.data.tokenizer import Tokenizer, train_tokenizer
from minitrain.paths import write_atomically, write_bytes_atomically

TOKENIZER_BYTES = 10_000_000  # to train it on


def find_tokenizer(settings: Settings, out: Path, rows: Callable[[], Iterator[Row]]) -> Tokenizer:
    """The one that was given, or one trained on the first documents that stay; kept beside them."""
    file = out / "tokenizer.json"
    if not file.exists():
        if settings.tokenizer is not None:
            tokenizer = Tokenizer.load(settings.tokenizer)
        else:
            tokenizer = train_tokenizer(_sample(rows()), settings.vocab_size)
        write_atomically(file, tokenizer.backend.to_str(pretty=True))
    return Tokenizer.load(file)


def _sample(rows: Iterator[Row]) -> Iterator[str]:
    size = 0
    for row in rows:
        if size >= TOKENIZER_BYTES:
            return
        size += size_bytes(row)
        yield row["text"]


def write_shards(
    settings: Settings,
    out: Path,
    work: Path,
    tokenizer: Tokenizer,
    rows: Iterator[Row],
    told: Callable[[int], Any],
) -> list[Shard]:
    """Writes those that are not there; work/shard-….json says that one is."""
    shards: list[Shard] = []
    while (done := work / f"shard-{len(shards):05d}.json").exists():
        shards.append(Shard(**json.loads(done.read_text(encoding="utf-8"))))
        told(sum(map(size_bytes, islice(rows, shards[-1].documents))))
    pending: list[Row] = []  # read, and not in a shard yet
    for group in shard_groups(_encoded(rows, tokenizer, pending), settings.shard_tokens):
        number, own = len(shards), pending[: len(group)]
        del pending[: len(group)]
        write_bytes_atomically(out / f"documents-{number:05d}.jsonl", as_lines(own))
        shard = write_shard(out, number, group, tokenizer.vocab_size, tokenizer.end_token)
        write_atomically(work / f"shard-{number:05d}.json", json.dumps(asdict(shard)))
        shards.append(shard)
        told(sum(map(size_bytes, own)))
    return shards


def _encoded(rows: Iterator[Row], tokenizer: Tokenizer, pending: list[Row]) -> Iterator[list[int]]:
    while batch := list(islice(rows, 256)):
        pending += batch
        yield from tokenizer.encode_batch([row["text"] for row in batch])
