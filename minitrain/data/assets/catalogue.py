"""The catalogue of assets: licence, source, size and SHA-256 of each, from `catalogue.csv`.

The hashes of what npm and pip carry were taken from the files themselves; those of the model hub's
files come from public records of the pinned revision.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from minitrain.data.assets.download import Package


@dataclass(frozen=True)
class Part:
    """A file to keep; a `*` in `path` and `member` keeps many, hashed one after the other."""

    path: str
    member: str  # where it lies in the package
    size_bytes: int
    sha256: str  # as `cat PATH | sha256sum` gives it
    start: int = 0
    stop: int | None = None  # the slice of the member, where it holds several files


@dataclass(frozen=True)
class Asset:
    name: str
    about: str
    licence: str
    package: Package
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def read_catalogue(file: Path) -> dict[str, Asset]:
    """The assets of a table that has a row for each part."""
    with file.open(newline="", encoding="utf-8") as lines:
        by_asset = groupby(csv.DictReader(lines), key=itemgetter("name"))
        return {name: _asset(list(rows)) for name, rows in by_asset}


def _asset(rows: list[dict[str, str]]) -> Asset:
    first = rows[0]
    package = Package(first["registry"], first["address"], int(first["download_bytes"]))
    parts = tuple(_part(row) for row in rows)
    return Asset(first["name"], first["about"], first["licence"], package, parts)


def _part(row: dict[str, str]) -> Part:
    start, stop = int(row["start"] or 0), int(row["stop"]) if row["stop"] else None
    size = int(row["size_bytes"])
    return Part(row["path"], row["member"], size, row["sha256"], start, stop)


ASSETS = read_catalogue(Path(__file__).with_name("catalogue.csv"))
