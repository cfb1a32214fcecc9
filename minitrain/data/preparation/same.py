"""Checks that an interrupted preparation may be resumed: the same settings, and the same files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minitrain.data.preparation.settings import Settings
from minitrain.errors import InputError
from minitrain.paths import write_atomically


def check_same_settings(settings: Settings, out: Path, work: Path) -> None:
    """Refuses to resume with other settings, or from files that have changed."""
    now = json.loads(json.dumps({**asdict(settings), "files": _stamps(settings)}))
    file = work / "settings.json"
    if not any(work.glob("block-*.json")):  # nothing is done: what could not be read may be mended
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
    """Names, sizes and times of the files of every source that is a file or folder."""
    stamps: list[list[Any]] = []
    for source in (*settings.sources, settings.test, settings.tokenizer, settings.classifier):
        path = Path(source or "")
        files = sorted(path.rglob("*")) if source and path.is_dir() else [path]
        stamps += [
            [str(file), file.stat().st_size, file.stat().st_mtime_ns]
            for file in files
            if source and file.is_file()
        ]
    return stamps
