"""Settings of `prepare`, the steps they imply, and the check when an interrupted run resumes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minitrain.data.preparation.contamination import TestSet
from minitrain.data.preparation.deduplication.near import Bands, choose_bands
from minitrain.data.preparation.documents import check_sources, read_texts
from minitrain.data.preparation.filters.classifier import Classifier
from minitrain.data.preparation.filters.language import language_rule
from minitrain.data.preparation.filters.rules import (
    C4,
    FINEWEB,
    GOPHER,
    REPETITION,
    Edit,
    Filter,
    Step,
    sentence_lines,
)
from minitrain.data.preparation.private import masked
from minitrain.data.tokenizer import SMALLEST
from minitrain.errors import InputError, check_whole, unknown_name
from minitrain.paths import write_atomically

STEPS_OF: dict[str, tuple[Step, ...]] = {
    "gopher": (Filter(GOPHER),),
    "repetition": (Filter(REPETITION),),
    "c4": (Edit(sentence_lines), Filter(C4)),
    "fineweb": (Filter(FINEWEB),),
}
HASHES = 128  # of MinHash, at most


@dataclass(frozen=True)
class Settings:
    """Everything the output depends on; a step whose setting is None or 0 is skipped."""

    sources: tuple[str, ...]
    field: str = "text"
    language: str | None = "en"
    filters: tuple[str, ...] = ("gopher", "repetition")
    classifier: str | None = None  # a file written by `Classifier.save`
    label: str = "wanted"  # the label to keep
    least: float = 0.5  # minimum probability of it
    mask: bool = True
    test: str | None = None  # a source of test texts to keep out
    near: float | None = 0.75  # Jaccard similarity
    passages: int = 0  # characters
    tokenizer: str | None = None  # a file; None: one is trained
    vocab_size: int = 4096
    shard_tokens: int = 1 << 26
    block_bytes: int = 4_000_000  # of text between two saves

    def __post_init__(self) -> None:
        check_sources(self.sources)
        for name in self.filters:
            if name not in STEPS_OF:
                raise unknown_name("filter", name, STEPS_OF)
        if self.language is not None:
            language_rule(self.language)
        if self.classifier is not None:
            self._classified()
        if self.near is not None:
            choose_bands(self.near, HASHES)
        if self.test is not None:
            check_sources([self.test])
        check_whole("shard_tokens", self.shard_tokens)
        check_whole("block_bytes", self.block_bytes)
        if self.passages < 0:
            raise InputError(f"passages {self.passages}: use 0 or more")
        if not 0 <= self.least <= 1:
            raise InputError(f"least {self.least}: a probability is 0 to 1")
        if self.tokenizer is None and self.vocab_size < SMALLEST:
            raise InputError(f"a vocabulary of {self.vocab_size}: use {SMALLEST} or more")

    @property
    def bands(self) -> Bands | None:
        return None if self.near is None else choose_bands(self.near, HASHES)

    def steps(self) -> list[Step]:
        """Cheap steps first, masking last: contamination is checked on unmasked text."""
        steps: list[Step] = []
        if self.language is not None:
            steps.append(Filter((language_rule(self.language),)))
        for name in self.filters:
            steps += STEPS_OF[name]
        if self.classifier is not None:
            steps.append(self._classified())
        if self.test is not None:
            texts = read_texts([self.test], self.field)
            steps.append(Filter((TestSet(texts).rule(),)))
        return [*steps, masked] if self.mask else steps

    def _classified(self) -> Step:
        return Filter((Classifier.load(self.classifier).rule(self.label, self.least),))

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"sources": [Path(source).name for source in self.sources]}


def check_same_settings(settings: Settings, out: Path, work: Path) -> None:
    """Refuses to resume with other settings, or from files that have changed."""
    now = json.loads(json.dumps({**asdict(settings), "files": _stamps(settings)}))
    file = work / "settings.json"
    if not any(work.glob("block-*.jsonl")):  # nothing done yet: a bad source may be fixed
        write_atomically(file, json.dumps(now, indent=2))
        return
    begun = json.loads(file.read_text(encoding="utf-8"))
    changed = [name for name in now if now[name] != begun.get(name)]
    if changed:
        raise InputError(
            f"{out} was begun with other {' and '.join(changed)}: give the same to go on, "
            "or --out another folder"
        )


def _stamps(settings: Settings) -> list[list[Any]]:
    """Names, sizes and modification times of all source files."""
    given = (*settings.sources, settings.test, settings.tokenizer, settings.classifier)
    paths = [Path(source) for source in given if source]
    files = [file for path in paths for file in sorted((path, *path.rglob("*")))]
    return [[str(f), f.stat().st_size, f.stat().st_mtime_ns] for f in files if f.is_file()]
