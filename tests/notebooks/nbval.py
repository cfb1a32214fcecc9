"""A notebook run whole through nbval, cell by cell, in a kernel of its own.

Cells tagged `nbval-check-output` must print what they printed when the solution was built. The
learner's own progress is not touched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from minitrain.paths import course_root

CELL_SECONDS = 120


def nbval(notebook: Path, scratch: Path) -> subprocess.CompletedProcess:
    options = ["--nbval-lax", "--nbval-current-env", f"--nbval-cell-timeout={CELL_SECONDS}"]
    quiet = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", f"--rootdir={notebook.parent}"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, *options, str(notebook)],
        capture_output=True,
        text=True,
        cwd=course_root(),
        env={**os.environ, "XDG_DATA_HOME": str(scratch)},
    )


def check_runs(notebook: Path, scratch: Path) -> None:
    done = nbval(notebook, scratch)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "failed" not in done.stdout
