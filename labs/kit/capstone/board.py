"""The scores of many in one table: `python -m minitrain.lab.capstone.board FOLDER`.

Each learner hands in a `scores.json`, on the public cases; hidden ones are scored by the grader.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from minitrain.paths import write_atomically

TRACKS = ("held bytes", "plan", "schedule", "operate")


def geometric(ratios: Iterable[float]) -> float:
    """100 times the geometric mean."""
    product, count = 1.0, 0
    for one in ratios:
        product, count = product * one, count + 1
    return 100 * product ** (1 / count)


def save(scores: Mapping[str, float], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(dict(scores), indent=1))
    return path


def merged(folder: Path) -> list[dict]:
    """A row for each `scores.json` below the folder, the best mean first."""
    rows = []
    for path in sorted(folder.rglob("scores.json")):
        own = json.loads(path.read_text(encoding="utf-8"))
        scores = {track: min(100.0, max(0.0, float(own.get(track, 0)))) for track in TRACKS}
        who = str(path.parent.relative_to(folder))
        rows.append({"who": who, **scores, "mean": sum(scores.values()) / len(TRACKS)})
    return sorted(rows, key=lambda row: -row["mean"])


if __name__ == "__main__":
    for row in merged(Path(sys.argv[1])):
        print("  ".join(f"{v:.2f}" if isinstance(v, float) else v for v in row.values()))
