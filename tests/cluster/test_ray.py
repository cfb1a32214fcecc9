"""labs/cluster/ray_train.py on a Ray cluster of this machine: a worker is killed, and the run is the
same to the bit. Ray's own start wants a machine that is not busy: its node gives up after 15 s."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from minitrain.reliability.checkpoint.folder import newest_checkpoint
from minitrain.reliability.events import EventLog

from ..minitrain.commands.train.test_command import SMALL, has_logged, log

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "labs" / "cluster"
MARK = "MINITRAIN_RAY_DRILL"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(500)]

DRIVER = """
import sys
import ray_train

def rank(arguments):
    from minitrain.commands.train import run
    run.SAVE_SECONDS = 0.0  # a checkpoint after each step
    ray_train.rank(arguments)

if __name__ == "__main__":
    ray_train.fit(sys.argv[1:], 2, False, rank)
"""


def workers(mark: str) -> list[psutil.Process]:
    """Ray's processes in which a rank trains."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == mark
            if ours and "TrainWorker" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def environment(mark: str = "") -> dict[str, str]:
    path = os.pathsep.join((str(ROOT), str(CLUSTER)))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", MARK: mark}


def test_a_killed_worker_starts_again_with_all_and_the_run_is_the_same(tmp_path):
    pytest.importorskip("ray.train", reason="pip install 'minitrain[ray]'")
    data, run = tmp_path / "text.txt", tmp_path / "run"
    data.write_text("the cat sat on the mat and then it ran. " * 3000)
    common = [*SMALL, "--data", str(data), "--steps", "120"]
    (tmp_path / "driver.py").write_text(DRIVER)
    command = [sys.executable, str(tmp_path / "driver.py"), *common, "--out", str(run)]
    with (tmp_path / "said.txt").open("w") as out:
        driver = subprocess.Popen(
            command, cwd=tmp_path, env=environment(str(tmp_path)), stdout=out, stderr=out
        )
    said = (tmp_path / "said.txt").read_text
    try:
        deadline = time.monotonic() + 240
        while not has_logged(run, 5):
            assert driver.poll() is None and time.monotonic() < deadline, said()[-3000:]
            time.sleep(0.05)
        victims = workers(str(tmp_path))
        assert len(victims) == 2
        os.kill(victims[1].pid, signal.SIGKILL)
        assert driver.wait(240) == 0, said()[-3000:]
    finally:
        driver.send_signal(signal.SIGINT)
        driver.wait(60)
    resumed = EventLog(run / "events.jsonl").read("resumed")
    assert len(resumed) == 1 and 4 <= resumed[0]["step"] < 120 and resumed[0]["ranks"] == 2
    whole = [sys.executable, "-m", "minitrain", "train", *common, "--ranks", "2"]
    done = subprocess.run([*whole, "--out", "whole"], cwd=tmp_path, env=environment())
    assert done.returncode == 0 and len(log(run)) == 120
    found, wanted = (
        load_file(newest_checkpoint(tmp_path / name) / "model.safetensors")
        for name in ("run", "whole")
    )
    assert all(found[name].equal(wanted[name]) for name in wanted)
