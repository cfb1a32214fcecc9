"""Prepares training data: sources filtered, masked, deduplicated and tokenized into files, with a
report.

    sources ─ blocks ─► OUT/work/block-…      rules, masks; of each document its hashes
            ─ duplicates ─► OUT/work/kept.npz  equal and near ones, over all blocks
            ─ passages ─► OUT/work/cut.jsonl   if asked for: what comes again is cut
            ─ tokens ─► OUT/tokens-…, stops-…, documents-…, tokenizer.json
            ─ report ─► OUT/report.json, report.md, funnel.png, index.json; OUT/work is removed

Whatever a stage has saved is not done again: killed at any moment and started anew with the same
settings, it goes on, and the output is the same, byte for byte. Memory: a block, then 16 + 8 b
bytes a document, then a shard; with `passages`, the suffix array of the whole text.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from minitrain.data.preparation.blocks import (
    as_lines,
    block_counts,
    block_hashes,
    block_rows,
    clean_blocks,
)
from minitrain.data.preparation.deduplication.clusters import clusters
from minitrain.data.preparation.deduplication.exact import firsts_of
from minitrain.data.preparation.deduplication.near import pairs_of_keys
from minitrain.data.preparation.deduplication.substring import cut_repeats
from minitrain.data.preparation.documents import NO_TEXT, Row, source_bytes
from minitrain.data.preparation.drops import Drops, add_drop, size_bytes
from minitrain.data.preparation.report import Report, write_report
from minitrain.data.preparation.same import check_same_settings
from minitrain.data.preparation.settings import Settings
from minitrain.data.preparation.shards import find_tokenizer, write_shards
from minitrain.data.stream.token_files import INDEX, TokenIndex, write_index
from minitrain.errors import InputError
from minitrain.paths import write_bytes_atomically

EXACT, NEAR, EMPTY = "exact_duplicate", "near_duplicate", "nothing_but_repeats"


def prepare(settings: Settings, out: Path, progress: bool = True) -> Report:
    """Does what is not done yet. InputError where `out` was begun with other settings."""
    work = out / "work"
    if (out / INDEX).exists():
        shutil.rmtree(work, ignore_errors=True)  # where a kill came at the very end
        raise InputError(f"{out} is prepared already: give --out another folder")
    if out.exists() and not work.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is not empty and was not begun by prepare: give another folder")
    work.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(work / "lock", timeout=0.2):
            report = _prepare(settings, out, work, progress)
    except Timeout as error:
        raise InputError(f"another process is preparing {out}: give another folder") from error
    shutil.rmtree(work)
    return report


def _prepare(settings: Settings, out: Path, work: Path, progress: bool) -> Report:
    check_same_settings(settings, out, work)
    for unfinished in (*out.glob(".*.new"), *work.glob(".*.new")):  # of a process that was killed
        unfinished.unlink()
    with _bar("cleaning", progress, source_bytes(settings.sources)) as bar:
        count = clean_blocks(settings, work, bar.update)
    numbers = range(count)
    if not any(block_counts(work, number)["kept"]["documents"] for number in numbers):
        reasons_given = _reasons(work, numbers)
        shutil.rmtree(work)  # so that other settings may begin
        raise InputError(f"no document is left: {reasons_given}")
    reasons = _saved(work / "kept.npz", lambda: _kept(settings, work, numbers))
    if settings.passages:
        _cut_passages(settings, work, numbers, reasons)
    tokenizer = find_tokenizer(settings, out, lambda: _texts(settings, work, numbers, reasons))
    total = sum(block_counts(work, number)["kept"]["bytes"] for number in numbers)
    with _bar("tokenizing", progress, total) as bar:
        rows = _texts(settings, work, numbers, reasons)
        shards = write_shards(settings, out, work, tokenizer, rows, bar.update)
    index = TokenIndex(tokenizer.vocab_size, tokenizer.end_token, tuple(shards))
    report = _report(settings, work, numbers, reasons, index)
    write_report(out, report)
    write_index(out, index)
    return report


# --- which documents ---


def _kept(settings: Settings, work: Path, numbers: range) -> np.ndarray:
    """(N,) int8 of all rows that the blocks kept: 0 stays, 1 an exact duplicate, 2 a near one."""
    arrays = [block_hashes(work, number) for number in numbers]
    digests = np.concatenate([digests for digests, _ in arrays])
    exact = firsts_of(map(bytes, digests))
    reasons = (exact != np.arange(len(exact))).astype(np.int8)
    if settings.near is not None:
        left = np.flatnonzero(reasons == 0)
        keys = np.concatenate([keys for _, keys in arrays])[left]
        near = clusters(pairs_of_keys(keys), len(keys))
        reasons[left[near != np.arange(len(near))]] = 2
    return reasons


def _rows(work: Path, numbers: range) -> Iterator[Row]:
    for number in numbers:
        yield from block_rows(work, number)


def _cut_passages(settings: Settings, work: Path, numbers: range, reasons: np.ndarray) -> None:
    """All rows that stay, in work/cut.jsonl, without what came before."""
    file = work / "cut.jsonl"
    if not file.exists():
        rows = [row for row, reason in zip(_rows(work, numbers), reasons) if not reason]
        cut = cut_repeats([row["text"] for row in rows], settings.passages)
        changed = [{**row, "text": text} for row, text in zip(rows, cut)]
        write_bytes_atomically(file, as_lines(changed))


def _texts(settings: Settings, work: Path, numbers: range, reasons: np.ndarray) -> Iterator[Row]:
    """The rows that stay, as they will be."""
    if not settings.passages:
        yield from (row for row, reason in zip(_rows(work, numbers), reasons) if not reason)
        return
    with (work / "cut.jsonl").open(encoding="utf-8") as lines:
        yield from (row for row in map(json.loads, lines) if row["text"].strip())


# --- what is told ---


def _report(
    settings: Settings, work: Path, numbers: range, reasons: np.ndarray, index: TokenIndex
) -> Report:
    blocks = [block_counts(work, number) for number in numbers]
    report = Report(settings.as_json(), tokens=index.tokens, vocab_size=index.vocab_size)
    report.masked = sum(block["masked"] for block in blocks)
    for block in blocks:
        report.add_block(block)
    report.stage("filters")
    rows = ((row, reason) for row, reason in zip(_rows(work, numbers), reasons.tolist()) if reason)
    duplicates: Drops = {}
    for row, reason in rows:
        add_drop(duplicates, (EXACT, NEAR)[reason - 1], row)
    for reason in (EXACT, NEAR):
        report.take(reason, duplicates.get(reason))
    if settings.passages:
        _report_passages(report, work, numbers, reasons)
    return report


def _report_passages(report: Report, work: Path, numbers: range, reasons: np.ndarray) -> None:
    before = (row for row, reason in zip(_rows(work, numbers), reasons.tolist()) if not reason)
    emptied: Drops = {}
    trimmed = 0
    with (work / "cut.jsonl").open(encoding="utf-8") as lines:
        for row, after in zip(before, map(json.loads, lines)):
            if after["text"].strip():
                trimmed += size_bytes(row) - size_bytes(after)
            else:
                add_drop(emptied, EMPTY, row)
    report.trimmed += trimmed
    report.take(EMPTY, emptied.get(EMPTY), trimmed)


def _reasons(work: Path, numbers: range) -> str:
    totals: dict[str, int] = {}
    for number in numbers:
        for reason, own in block_counts(work, number)["dropped"].items():
            totals[reason] = totals.get(reason, 0) + own["documents"]
    if not totals:
        return "none was read; give sources that are not empty"
    ordered = sorted(totals.items(), key=lambda pair: -pair[1])[:3]
    dropped = ", ".join(f"{reason} dropped {count}" for reason, count in ordered)
    remedy = "use other --filters or another --language"
    if ordered[0][0] == NO_TEXT:
        remedy = "give the field that has the text, with --field"
    return f"{dropped}; {remedy}"


def _saved(file: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    if not file.exists():
        data = io.BytesIO()
        np.savez(data, made=make())
        write_bytes_atomically(file, data.getvalue())
    with np.load(file) as arrays:
        return arrays["made"]


def _bar(name: str, progress: bool, total: int | None) -> tqdm:
    return tqdm(desc=name, total=total, unit="B", unit_scale=True, disable=not progress)
