"""`pytest tests/labs --submission …` on a copy of the course with the tiny lab."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minitrain.paths import course_root


@pytest.fixture
def labs(course: Path, tmp_path: Path) -> Path:
    """tests/labs of the tiny course, with the course's own conftest."""
    shutil.copytree(course / "tests" / "labs", tmp_path / "tests" / "labs")
    shutil.copy(course_root() / "tests" / "labs" / "conftest.py", tmp_path / "tests" / "labs")
    return tmp_path / "tests" / "labs"


def run(labs: Path, submission: Path) -> str:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rsf",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
    ]
    command += [str(labs), "--submission", str(submission)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=labs)
    return done.stdout


def test_a_complete_notebook_passes(labs, complete):
    out = run(labs, complete())
    assert "6 passed" in out, out


def test_a_mistake_fails_and_a_stub_is_skipped(labs, tmp_path):
    source = "def chunk_sizes(n, ranks):\n    return [n // ranks] * ranks\n\n"
    source += "def sum_over_ranks(group, x):\n    raise NotImplementedError\n"
    (tmp_path / "t00_tiny.py").write_text(source)
    out = run(labs, tmp_path / "t00_tiny.py")
    assert "1 failed, 1 passed, 4 skipped" in out, out
    assert "got [2, 2, 2, 2], expected [3, 3, 2, 2]" in out or "item 0: got 2, expected 3" in out
    assert "not filled in yet" in out and "carries no recorded data" in out
