"""labs/cluster/ray_train.py on a Ray cluster of this machine: a worker is killed, and the run is the
same to the bit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
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
    ray = {"RAY_AUTH_MODE": "disabled"}  # it hears this machine alone
    ray["RAY_raylet_start_wait_time_s"] = "180"  # 30, were it not said
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", MARK: mark, **ray}


def until(happened, process: subprocess.Popen, said) -> None:
    deadline = time.monotonic() + 240
    while not happened():
        assert process.poll() is None and time.monotonic() < deadline, said()[-3000:]
        time.sleep(0.05)


@pytest.fixture
def ray_address(tmp_path):
    """A node of two CPUs. Its ports are given: for those that its agents would choose it waits 15 s
    and no longer, which is not enough on a busy machine (Ray 2.60)."""
    pytest.importorskip("ray.train", reason="pip install 'minitrain[ray]'")
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(5)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        port, *others = [probe.getsockname()[1] for probe in probes]
    agents = ("dashboard-agent-grpc", "dashboard-agent-listen", "runtime-env-agent")
    ports = zip((*agents, "metrics-export"), others)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--node-ip-address=127.0.0.1", "--num-cpus=2", "--include-dashboard=false"]
    command += [f"--{name}-port={number}" for name, number in ports] + [f"--port={port}"]
    with tempfile.TemporaryDirectory(prefix="ray-") as short:  # sockets take no long paths
        with (tmp_path / "node.txt").open("w") as out:
            command.append(f"--temp-dir={short}")
            node = subprocess.Popen(command, env=environment(str(tmp_path)), stdout=out, stderr=out)
        try:
            said = (tmp_path / "node.txt").read_text
            until(lambda: "Ray runtime started" in said(), node, said)
            yield f"127.0.0.1:{port}"
        finally:
            node.send_signal(signal.SIGTERM)
            node.wait(60)


def test_a_killed_worker_starts_again_with_all_and_the_run_is_the_same(ray_address, tmp_path):
    data, run = tmp_path / "text.txt", tmp_path / "run"
    data.write_text("the cat sat on the mat and then it ran. " * 3000)
    common = [*SMALL, "--data", str(data), "--steps", "30"]
    (tmp_path / "driver.py").write_text(DRIVER)
    command = [sys.executable, str(tmp_path / "driver.py"), *common, "--out", str(run)]
    given = {**environment(str(tmp_path)), "RAY_ADDRESS": ray_address}
    with (tmp_path / "said.txt").open("w") as out:
        driver = subprocess.Popen(command, cwd=tmp_path, env=given, stdout=out, stderr=out)
    said = (tmp_path / "said.txt").read_text
    try:
        until(lambda: has_logged(run, 5), driver, said)
        victims = workers(str(tmp_path))
        assert len(victims) == 2
        os.kill(victims[1].pid, signal.SIGKILL)
        assert driver.wait(240) == 0, said()[-3000:]
    finally:
        driver.send_signal(signal.SIGINT)
        driver.wait(60)
    resumed = EventLog(run / "events.jsonl").read("resumed")
    assert len(resumed) == 1 and 4 <= resumed[0]["step"] < 30 and resumed[0]["ranks"] == 2
    whole = [sys.executable, "-m", "minitrain", "train", *common, "--ranks", "2"]
    done = subprocess.run([*whole, "--out", "whole"], cwd=tmp_path, env=environment())
    assert done.returncode == 0 and len(log(run)) == 30
    found, wanted = (
        load_file(newest_checkpoint(tmp_path / name) / "model.safetensors")
        for name in ("run", "whole")
    )
    assert all(found[name].equal(wanted[name]) for name in wanted)
