"""kill -9 at random instants: a state that loads, no completed save lost, the same losses to the bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
FEW = [("sync", 4), ("background", 4), ("ranks", 2)]
MANY = [("sync", 70), ("background", 70), ("ranks", 60)]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind, kills", [*FEW, *(pytest.param(*case, marks=pytest.mark.full) for case in MANY)]
)
def test_killed_at_random_instants(tmp_path, kind, kills):
    script = [sys.executable, str(Path(__file__).with_name("kill_drill.py"))]
    done = subprocess.run(
        [*script, str(tmp_path), kind, str(kills), "1"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["other_losses"] == 0 and found["repeated"]
    assert found["newest"] > 0 and found["steps"] > 3
    # of one save in the background a run is at most a save ahead
    assert found["most_lost"] <= (3 if kind == "sync" else 6)
