"""labs/cluster/slurm.sbatch on two Slurm nodes of this machine: a rank killed, a job preempted and
requeued, one that is cancelled; and what exits 0 when it is asked to end is never requeued."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from minitrain.reliability.checkpoint.folder import newest_checkpoint
from minitrain.reliability.events import EventLog

from ..minitrain.commands.train.test_command import SMALL, has_logged

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "labs" / "cluster"
TOOLS = ("munged", "slurmctld", "slurmd", "sbatch")
MISSING = [t for t in TOOLS if not shutil.which(t, path=f"{os.environ['PATH']}:/usr/sbin")]

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"no {' and no '.join(MISSING)} here: apt-get install slurmctld slurmd slurm-client "
        "munge",
    ),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Two nodes; their names and the job's commands are in the environment that is given."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = tmp_path_factory.mktemp("slurm")
    environment = {**os.environ, "HERE": str(here), "PORT": str(port)}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    script = ["bash", str(CLUSTER / "slurm_here.sh")]
    try:
        done = subprocess.run([*script, "start"], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        name, conf = done.stdout.removeprefix("export ").strip().split("=")
        yield {**environment, name: conf}
    finally:
        subprocess.run([*script, "stop"], env=environment)


def said(slurm, *words: str) -> str:
    done = subprocess.run(words, env=slurm, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def submit(slurm, file: Path, *options: str) -> str:
    given = ("--parsable", f"--chdir={file.parent}", f"--output={file.with_suffix('.txt')}")
    return said(slurm, "sbatch", *given, *options, str(file))


def field(slurm, job: str, name: str) -> str:
    return re.search(rf"\b{name}=(\S+)", said(slurm, "scontrol", "show", "job", job))[1]


def until(happened, what: str, seconds: float = 150) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def ended(slurm, job: str) -> str:
    """The state of a job that is over."""
    over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
    until(lambda: field(slurm, job, "JobState") in over, f"job {job} does not end")
    return field(slurm, job, "JobState")


def smaller(folder: Path, name: str, steps: int) -> Path:
    """slurm.sbatch itself, but for the sizes: two nodes with a rank each, and no GPU."""
    text = (CLUSTER / "slurm.sbatch").read_text()
    text = re.sub(r"#SBATCH --(gpus-per-node|cpus-per-task).*\n", "", text)
    data = folder / "text.txt"
    data.write_text("the cat sat on the mat and then it ran. " * 3000)
    train = f"train {' '.join(SMALL)} --data {data} --steps {steps} --out runs/{name}"
    pairs = (
        (r"runs/100M-mesh\n", f"runs/{name}\n"),
        (r"srun torchrun", f"srun {sys.executable} -m torch.distributed.run"),
        (r"--nproc-per-node 8", "--nproc-per-node 1"),
        (r"train --preset(.|\n)*runs/100M-mesh", train),
    )
    for old, new in pairs:
        text, count = re.subn(old, new, text, count=1)
        assert count == 1, old
    file = folder / f"{name}.sbatch"
    file.write_text(text)
    return file


def rank_1(run: str) -> psutil.Process:
    def is_it(process: psutil.Process) -> bool:
        try:
            given = process.environ()
            return given.get("RANK") == "1" and run in process.cmdline()
        except psutil.Error:
            return False

    return next(filter(is_it, psutil.process_iter()))


def test_a_rank_is_killed_then_the_job_preempted_and_the_run_is_the_same(slurm, tmp_path):
    run = tmp_path / "runs" / "low"
    job = submit(slurm, smaller(tmp_path, "low", 120))
    until(lambda: has_logged(run, 5), "no step is made")
    os.kill(rank_1("runs/low").pid, signal.SIGKILL)
    output = tmp_path / "low.txt"
    until(lambda: "it begins anew" in output.read_text(), "no checkpoint yet: it begins anew")
    until(lambda: has_logged(run, 5), "no step is made after the restart")
    (tmp_path / "high.sh").write_text("#!/bin/sh\nsrun sleep 1\n")
    high = submit(slurm, tmp_path / "high.sh", "--partition=high", "--nodes=2")
    assert ended(slurm, high) == "COMPLETED"
    events = EventLog(run / "events.jsonl")
    stopped = events.read("stopped")
    assert len(stopped) == 1 and 5 <= stopped[0]["step"] < 120
    assert ended(slurm, job) == "COMPLETED", output.read_text()[-3000:]
    assert field(slurm, job, "Restarts") == "1"
    assert [e["step"] for e in events.read("resumed")] == [stopped[0]["step"]]
    whole = submit(slurm, smaller(tmp_path, "whole", 120))
    assert ended(slurm, whole) == "COMPLETED" and field(slurm, whole, "Restarts") == "0"
    found, wanted = (
        load_file(newest_checkpoint(tmp_path / "runs" / name) / "model.safetensors")
        for name in ("low", "whole")
    )
    assert all(found[name].equal(wanted[name]) for name in wanted)


def test_a_job_that_is_cancelled_saves_and_stays_cancelled(slurm, tmp_path):
    run = tmp_path / "runs" / "low"
    job = submit(slurm, smaller(tmp_path, "low", 100_000))
    until(lambda: has_logged(run, 3), "no step is made")
    said(slurm, "scancel", job)
    assert ended(slurm, job) == "CANCELLED"
    time.sleep(2)
    assert field(slurm, job, "JobState") == "CANCELLED" and field(slurm, job, "Restarts") == "0"
    assert len(EventLog(run / "events.jsonl").read("stopped")) == 1
    assert newest_checkpoint(run).is_dir()


NAIVE = """#!/bin/bash
srun {python} -uc '
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("begun")
time.sleep(100)
'
"""


def test_what_exits_0_on_sigterm_is_done_and_never_requeued(slurm, tmp_path):
    """Why slurm.sbatch asks for the requeue itself."""
    naive = tmp_path / "naive.sh"
    naive.write_text(NAIVE.format(python=sys.executable))
    job = submit(slurm, naive, "--nodes=2", "--requeue")
    output = tmp_path / "naive.txt"
    until(lambda: output.is_file() and output.read_text().count("begun") == 2, "no task begins")
    high = submit(slurm, naive, "--partition=high", "--nodes=2", "--job-name=high")
    assert ended(slurm, job) == "COMPLETED" and field(slurm, job, "Restarts") == "0"
    said(slurm, "scancel", high)
