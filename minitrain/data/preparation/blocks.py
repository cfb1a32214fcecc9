"""The rows of all sources, cleaned a block at a time, each block saved when it is done.

    block-00007.jsonl    the rows that were kept
    block-00007.npz      of each its digest (n, 16) uint8 and its band keys (n, b) uint64
    block-00007.json     what was read, dropped and kept, with samples; written last

A block whose .json is there is done. After a kill the sources are read again, and its rows passed
over: reading is cheap beside the rules. Memory: one block.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from minitrain.data.preparation.deduplication.exact import digest
from minitrain.data.preparation.deduplication.minhash import minhash
from minitrain.data.preparation.deduplication.near import band_keys
from minitrain.data.preparation.documents import Row, read_rows
from minitrain.data.preparation.drops import Drops, add_drop, size_bytes
from minitrain.data.preparation.settings import Settings
from minitrain.data.preparation.steps import is_kept, run_steps
from minitrain.paths import write_atomically, write_bytes_atomically


def clean_blocks(settings: Settings, work: Path, told: Callable[[int], Any]) -> int:
    """Cleans what is not done yet and gives the number of blocks; `told` hears the bytes read."""
    rows, number = read_rows(settings.sources, settings.field), 0
    steps = None
    while True:
        done = work / f"block-{number:05d}.json"
        if done.exists():
            counted = json.loads(done.read_text(encoding="utf-8"))
            for _ in islice(rows, counted["read"]["documents"]):
                pass
            told(counted["read"]["bytes"])
        else:
            block = list(_until(rows, settings.block_bytes))
            if not block:
                return number
            steps = settings.steps() if steps is None else steps
            _save(done, [run_steps(steps, row) for row in block], block, settings)
            told(sum(map(size_bytes, block)))
        number += 1


def block_rows(work: Path, number: int) -> Iterator[Row]:
    """The rows that a block kept."""
    with (work / f"block-{number:05d}.jsonl").open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def block_hashes(work: Path, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the rows that a block kept: digests (n, 16) and band keys (n, b)."""
    with np.load(work / f"block-{number:05d}.npz") as arrays:
        return arrays["digests"], arrays["keys"]


def block_counts(work: Path, number: int) -> dict[str, Any]:
    return json.loads((work / f"block-{number:05d}.json").read_text(encoding="utf-8"))


def as_lines(rows: Iterable[Row]) -> bytes:
    """JSON lines of id and text, in ASCII."""
    lines = (json.dumps({"id": row["id"], "text": row["text"]}) + "\n" for row in rows)
    return "".join(lines).encode("ascii")


def _until(rows: Iterator[Row], most: int) -> Iterator[Row]:
    size = 0
    for row in rows:
        yield row
        size += size_bytes(row)
        if size >= most:
            return


def _save(done: Path, cleaned: list[Row], raw: list[Row], settings: Settings) -> None:
    kept = [row for row in cleaned if is_kept(row)]
    dropped: Drops = {}
    for row, before in zip(cleaned, raw):
        if not is_kept(row):
            add_drop(dropped, row["dropped"], before)
    texts = [row["text"] for row in kept]
    digests = np.frombuffer(b"".join(map(digest, texts)), np.uint8).reshape(-1, 16)
    keys = np.zeros((len(kept), 0), np.uint64)
    if settings.bands is not None:
        keys = band_keys(minhash(texts, settings.bands.hashes), settings.bands)
    arrays = io.BytesIO()
    np.savez(arrays, digests=digests, keys=keys)
    write_bytes_atomically(done.with_suffix(".jsonl"), as_lines(kept))
    write_bytes_atomically(done.with_suffix(".npz"), arrays.getvalue())
    counts = {
        "read": {"documents": len(raw), "bytes": sum(map(size_bytes, raw))},
        "dropped": dropped,
        "kept": {"documents": len(kept), "bytes": sum(map(size_bytes, kept))},
        "masked": sum(row.get("masked", 0) for row in kept),
    }
    write_atomically(done, json.dumps(counts))
