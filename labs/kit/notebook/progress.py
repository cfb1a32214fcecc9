"""A learner's progress on disk: crash-safe, keeping the best scores.

One JSON file per lab, in the user's data folder, one folder per checkout. Each change is
read-modify-write under a lock, to a new file that atomically replaces the old one; the last good
one is kept as `.bak` and read if the file is corrupt. The best score is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from minitrain.paths import course_root, state_dir, write_atomically


@dataclass
class LabProgress:
    """Progress in one lab: points by name, and the learner's guesses, tables and answers."""

    lab: str
    points: dict[str, list[float]] = field(default_factory=dict)  # name -> [best, of]
    predictions: dict[str, Any] = field(default_factory=dict)
    records: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)


def progress_dir() -> Path:
    """The folder of this checkout; two clones on one machine do not mix.

    Notebooks of `solutions/` have a separate one: running them earns no points.
    """
    key = hashlib.sha256(str(course_root()).encode()).hexdigest()[:12]
    own = state_dir() / "progress" / key
    return own / "solutions" if Path.cwd() == course_root() / "solutions" else own


class Progress:
    """The file of one lab; `folder`: for tests and builds, which must not touch the user's."""

    def __init__(self, lab: str, folder: Path | None = None) -> None:
        self.lab = lab
        self.path = (folder or progress_dir()) / f"{lab}.json"

    def load(self) -> LabProgress:
        """The progress on disk; for a corrupt file, the last good version; else empty."""
        found = _read(self.lab, self.path) or _read(self.lab, self._backup)
        return found or LabProgress(self.lab)

    def score(self, name: str, points: float, of: float) -> float:
        """Records a result and returns the best so far."""

        def change(now: LabProgress) -> None:
            best = max(points, now.points.get(name, [0.0, of])[0])
            now.points[name] = [min(best, of), of]

        return self._update(change).points[name][0]

    def remember(self, kind: str, name: str, value: Any) -> None:
        """Keeps a value under `kind`: predictions, records or answers."""
        self._update(lambda now: getattr(now, kind).__setitem__(name, value))

    def reset(self) -> Path | None:
        """Clears all progress; returns the backup file, or None if there was none."""
        if self.load() == LabProgress(self.lab):
            return None
        old = self.path.with_suffix(".before-reset")
        with FileLock(self.path.with_suffix(".lock"), timeout=10):
            os.replace(self.path if _read(self.lab, self.path) else self._backup, old)
            self.path.unlink(missing_ok=True)
            self._backup.unlink(missing_ok=True)
        return old

    @property
    def _backup(self) -> Path:
        return self.path.with_suffix(".bak")

    def _update(self, change: Callable[[LabProgress], None]) -> LabProgress:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_suffix(".lock"), timeout=10):
            now = self.load()
            change(now)
            if _read(self.lab, self.path):
                os.replace(self.path, self._backup)
            write_atomically(self.path, json.dumps(asdict(now), indent=1, ensure_ascii=False))
        return now


def _read(lab: str, path: Path) -> LabProgress | None:
    """None where there is no file, or a broken one."""
    try:
        return _parse(lab, path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _parse(lab: str, text: str) -> LabProgress:
    """The fields of valid type; ValueError for a foreign file."""
    raw = json.loads(text)
    if not isinstance(raw, dict) or raw.get("lab") != lab:
        raise ValueError(f"not the progress of {lab}")
    found = LabProgress(lab)
    for name, pair in raw.get("points", {}).items():
        best, of = map(float, pair)
        found.points[name] = [min(best, of), of]
    for kind in ("predictions", "records", "answers"):
        setattr(found, kind, dict(raw.get(kind, {})))
    return found
