"""Prepares training data: filters, masks, deduplicates and tokenizes sources into files, with a
report.

    sources ─ clean ─► OUT/work/block-….jsonl   every row: its text, or why it was dropped; hashes
            ─ find_duplicates, cut_passages     over all blocks, in memory
            ─ write_shards ─► OUT/tokens-…, stops-…, documents-…, tokenizer.json
            ─ report ─► OUT/report.json, report.md, funnel.png, index.json; OUT/work is removed

A saved block or shard is not made again: a run killed at any moment and restarted with the same
settings continues, and the output is the same, byte for byte. The sources are read again up to
where the run stopped: reading is cheap beside the rules. Memory: a block, then about
120 + 8 b bytes a document for b bands, then a shard; with `passages`, the whole text.
"""

from __future__ import annotations

import json
import os
import shutil
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from minitrain.data.preparation.deduplication.exact import digest, firsts_of
from minitrain.data.preparation.deduplication.near import (
    band_keys,
    clusters,
    minhash,
    pairs_of_keys,
)
from minitrain.data.preparation.deduplication.passages import cut_repeats
from minitrain.data.preparation.documents import NO_TEXT, Row, read_rows, source_bytes
from minitrain.data.preparation.filters.rules import Step, is_kept, run_steps
from minitrain.data.preparation.report import (
    EMPTY,
    EXACT,
    NEAR,
    Report,
    make_report,
    sample,
    size_bytes,
    write_report,
)
from minitrain.data.preparation.settings import Settings, check_same_settings
from minitrain.data.stream.token_files import (
    INDEX,
    Shard,
    TokenIndex,
    shard_groups,
    write_index,
    write_shard,
)
from minitrain.data.tokenizer import Tokenizer, train_tokenizer
from minitrain.errors import InputError
from minitrain.paths import write_atomically, write_bytes_atomically

TOKENIZER_BYTES = 10_000_000  # of text to train it on
Progress = Callable[[int], Any]  # called with the bytes of text just processed


def prepare(settings: Settings, out: str | os.PathLike, progress: bool = True) -> Report:
    """Does the remaining work. InputError if `out` was begun with other settings."""
    out = Path(out)
    work = out / "work"
    if (out / INDEX).exists():
        shutil.rmtree(work, ignore_errors=True)  # left by a kill at the very end
        raise InputError(f"{out} is prepared already: give --out another folder")
    if out.exists() and not work.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is not empty and was not begun by prepare: give another folder")
    work.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(work / "lock", timeout=0.2):
            check_same_settings(settings, out, work)
            for unfinished in (*out.glob(".*.new"), *work.glob(".*.new")):  # left by a kill
                unfinished.unlink()
            report = _stages(settings, out, work, progress)
    except Timeout as error:
        raise InputError(f"another process is preparing {out}: give another folder") from error
    shutil.rmtree(work)
    return report


def _stages(settings: Settings, out: Path, work: Path, progress: bool) -> Report:
    with _bar("cleaning", progress, source_bytes(settings.sources)) as bar:
        blocks = clean(settings, work, bar.update)
    reasons = find_duplicates(blocks, settings)
    if all(reasons):
        shutil.rmtree(work)  # so that a run with other settings can start
        raise InputError(f"no document is left: {_why(reasons)}")
    cut = cut_passages(blocks, reasons, settings.passages) if settings.passages else None

    def left() -> Iterator[Row]:
        return (row for row in _final(blocks, reasons, cut) if is_kept(row))

    tokenizer = _tokenizer(settings, out, left())
    size = sum(row["left"] for row in left()) if progress else None  # one more reading of all
    with _bar("tokenizing", progress, size) as bar:
        shards = write_shards(left(), tokenizer, settings.shard_tokens, out, bar.update)
    index = TokenIndex(tokenizer.vocab_size, tokenizer.end_token, tuple(shards))
    rows = _final(blocks, reasons, cut)
    report = make_report(rows, settings.as_json(), index.tokens, index.vocab_size)
    write_report(out, report)
    write_index(out, index)
    return report


# --- blocks: a row at a time ---


def clean(settings: Settings, work: Path, progress: Progress) -> list[Path]:
    """Writes the missing blocks."""
    rows, steps, blocks = read_rows(settings.sources, settings.field), settings.steps(), []
    while True:
        block = work / f"block-{len(blocks):05d}.jsonl"
        if block.exists():
            sizes = [row["read"] for row in _records([block])]
            deque(islice(rows, len(sizes)), maxlen=0)
            progress(sum(sizes))
        else:
            raw = list(_until(rows, settings.block_bytes, progress))
            if not raw:
                return blocks
            write_bytes_atomically(block, _as_lines(_cleaned(raw, steps, settings)))
        blocks.append(block)


def _until(rows: Iterator[Row], most: int, progress: Progress) -> Iterator[Row]:
    size = 0
    while size < most and (row := next(rows, None)):
        own = size_bytes(row["text"])
        progress(own)
        size += own
        yield row


def _cleaned(raw: list[Row], steps: list[Step], settings: Settings) -> list[Row]:
    rows = [run_steps(steps, row) for row in raw]
    kept = list(filter(is_kept, rows))
    for row, before in zip(rows, raw):
        row["read"] = row["left"] = size_bytes(before["text"])
        if not is_kept(row):
            row["text"] = sample(before["text"])
    for row in kept:
        row["left"], row["digest"] = size_bytes(row["text"]), digest(row["text"]).hex()
    if settings.bands is not None:
        signatures = minhash((row["text"] for row in kept), settings.bands.hashes)
        for row, keys in zip(kept, band_keys(signatures, settings.bands).tolist()):
            row["keys"] = keys
    return rows


def _as_lines(rows: Iterable[Row]) -> bytes:
    """JSON lines, in ASCII: a text may contain lone surrogates."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode("ascii")


def _records(blocks: Iterable[Path]) -> Iterator[Row]:
    for block in blocks:
        with block.open(encoding="ascii") as lines:
            yield from map(json.loads, lines)


# --- all documents at once ---


def find_duplicates(blocks: list[Path], settings: Settings) -> list[str]:
    """For every row read, the reason for dropping it; empty if it stays."""
    reasons, digests, keys = [], [], array("Q")
    for row in _records(blocks):
        reasons.append(row["dropped"])
        if is_kept(row):
            digests.append(bytes.fromhex(row["digest"]))
            keys.extend(row.get("keys", ()))
    kept = np.flatnonzero([not reason for reason in reasons])
    first = firsts_of(digests) == np.arange(len(kept))
    for place in kept[~first]:
        reasons[place] = EXACT
    if settings.bands is not None and len(kept):
        own = np.array(keys).reshape(len(kept), -1)[first]
        near = clusters(pairs_of_keys(own), len(own)) != np.arange(len(own))
        for place in kept[first][near]:
            reasons[place] = NEAR
    return reasons


def cut_passages(blocks: list[Path], reasons: list[str], length: int) -> list[str]:
    """The remaining texts without repeated passages; sets the `reasons` of those left empty."""
    places = [place for place, reason in enumerate(reasons) if not reason]
    texts = [row["text"] for row in _final(blocks, reasons, None) if is_kept(row)]
    cut = dict(zip(places, cut_repeats(texts, length)))
    for place, text in cut.items():
        if not text.strip():
            reasons[place] = EMPTY
    return [text for text in cut.values() if text.strip()]


def _final(blocks: list[Path], reasons: list[str], cut: list[str] | None) -> Iterator[Row]:
    """All rows read, with their reasons and, for those that stay, their final text."""
    texts = iter(cut or ())
    for row, reason in zip(_records(blocks), reasons):
        if not reason and cut is not None:
            row["text"] = next(texts)
        elif reason in (EXACT, NEAR, EMPTY):
            row["text"] = sample(row["text"])
        yield {**row, "dropped": reason}


def _why(reasons: list[str]) -> str:
    """The commonest reasons, and a remedy."""
    if not reasons:
        return "none was read; give sources that are not empty"
    common = Counter(reasons).most_common(3)
    remedy = "use other --filters or another --language"
    if common[0][0] == NO_TEXT:
        remedy = "give the field that has the text, with --field"
    return f"{', '.join(f'{reason} dropped {count}' for reason, count in common)}; {remedy}"


# --- tokens ---


def _tokenizer(settings: Settings, out: Path, rows: Iterator[Row]) -> Tokenizer:
    """The given tokenizer, or one trained on the first remaining documents; saved in `out`."""
    file = out / "tokenizer.json"
    if not file.exists():
        if settings.tokenizer is not None:
            tokenizer = Tokenizer.load(settings.tokenizer)
        else:
            first = _until(rows, TOKENIZER_BYTES, lambda _: None)
            tokenizer = train_tokenizer((row["text"] for row in first), settings.vocab_size)
        write_atomically(file, tokenizer.backend.to_str(pretty=True))
    return Tokenizer.load(file)


def write_shards(
    rows: Iterator[Row], tokenizer: Tokenizer, most: int, out: Path, progress: Progress
) -> list[Shard]:
    """Writes the missing shards; work/shard-….json marks a finished one."""
    shards: list[Shard] = []
    while (done := out / "work" / f"shard-{len(shards):05d}.json").exists():
        shards.append(Shard(**json.loads(done.read_text(encoding="utf-8"))))
        progress(sum(row["left"] for row in islice(rows, shards[-1].documents)))
    pending: deque[Row] = deque()  # read, not yet in a shard
    for group in shard_groups(_encoded(rows, tokenizer, pending), most):
        name, own = f"{len(shards):05d}", [pending.popleft() for _ in group]
        documents = ({"id": row["id"], "text": row["text"]} for row in own)
        write_bytes_atomically(out / f"documents-{name}.jsonl", _as_lines(documents))
        shard = write_shard(out, len(shards), group, tokenizer.vocab_size, tokenizer.end_token)
        write_atomically(out / "work" / f"shard-{name}.json", json.dumps(asdict(shard)))
        shards.append(shard)
        progress(sum(row["left"] for row in own))
    return shards


def _encoded(rows: Iterator[Row], tokenizer: Tokenizer, pending: deque) -> Iterator[list[int]]:
    while batch := list(islice(rows, 256)):
        pending += batch
        yield from tokenizer.encode_batch([row["text"] for row in batch])


def _bar(name: str, progress: bool, total: int | None) -> tqdm:
    return tqdm(desc=name, total=total, unit="B", unit_scale=True, disable=not progress)
