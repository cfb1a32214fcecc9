"""Dropped documents by reason: how many, how many bytes, and a few of them to read."""

from __future__ import annotations

from typing import Any

from minitrain.data.preparation.deduplication.exact import digest
from minitrain.data.preparation.documents import Row
from minitrain.data.preparation.private import mask

SAMPLES, SAMPLE_SIGNS = 3, 240  # of each reason, and of each sample
Drops = dict[str, dict[str, Any]]  # reason -> documents, bytes, samples


def add_drop(drops: Drops, reason: str, row: Row) -> None:
    """One more document. What is private in its sample is masked: a report is read by many."""
    text = mask(row["text"][: 4 * SAMPLE_SIGNS])[:SAMPLE_SIGNS]  # cut first, half an address stays
    sample = [digest(row["id"] + row["text"]).hex(), row["id"], text]
    add_drops(drops, reason, {"documents": 1, "bytes": size_bytes(row), "samples": [sample]})


def add_drops(drops: Drops, reason: str, more: dict[str, Any]) -> None:
    """As many as `more` has. The samples with the lowest digests stay: a fair choice, and the
    same one however the documents were cut into blocks."""
    own = drops.setdefault(reason, {"documents": 0, "bytes": 0, "samples": []})
    own["documents"] += more["documents"]
    own["bytes"] += more["bytes"]
    own["samples"] = sorted([*own["samples"], *more["samples"]])[:SAMPLES]


def size_bytes(row: Row) -> int:
    """In UTF-8."""
    return len(row["text"].encode("utf-8", "surrogatepass"))
