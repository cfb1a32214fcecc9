"""The small course of one lab, e90_sums, on which the machinery is tested."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

collect_ignore = ["course"]
COURSE = Path(__file__).parent / "course"


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A fresh copy of the course: builds write into it."""
    return Path(shutil.copytree(COURSE, tmp_path / "course"))
