"""labs/cluster/slurm.sbatch on two Slurm nodes of this machine: one that is cancelled stays so, one
that fails at once, too; and what exits 0 when it is asked to end is never requeued."""

from __future__ import annotations

import sys
import time

import pytest

from minitrain.reliability.checkpoint.folder import newest_checkpoint
from minitrain.reliability.events import EventLog

from ..minitrain.apps.train.test_command import SMALL, has_logged
from .slurm_nodes import Slurm, smaller, until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(Slurm.missing()), reason=Slurm.missing()),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with Slurm(tmp_path_factory.mktemp("slurm")) as nodes:
        yield nodes


def test_a_job_that_is_cancelled_saves_and_stays_cancelled(slurm, tmp_path):
    run, text = tmp_path / "runs" / "low", tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and then it ran. " * 3000)
    train = [*SMALL, "--data", str(text), "--steps", "100000", "--out", "runs/low"]
    job = slurm.submit(smaller(tmp_path, "low", train))
    until(lambda: has_logged(run, 3), "no step is made")
    slurm.said("scancel", job)
    assert slurm.ended(job) == "CANCELLED"
    time.sleep(2)
    assert slurm.field(job, "JobState") == "CANCELLED" and slurm.field(job, "Restarts") == "0"
    assert len(EventLog(run / "events.jsonl").read("stopped")) == 1
    assert newest_checkpoint(run).is_dir()


def test_a_command_that_is_wrong_is_not_tried_again(slurm, tmp_path):
    train = [*SMALL, "--data", "nowhere.txt", "--steps", "9", "--out", "runs/wrong"]
    file = smaller(tmp_path, "wrong", train)
    job = slurm.submit(file)
    assert slurm.ended(job) == "FAILED" and slurm.field(job, "Restarts") == "0"
    assert "nowhere.txt" in file.with_suffix(".txt").read_text()


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
    job = slurm.submit(naive, "--nodes=2", "--requeue")
    output = tmp_path / "naive.txt"
    until(lambda: output.is_file() and output.read_text().count("begun") == 2, "no task begins")
    high = slurm.submit(naive, "--partition=high", "--nodes=2", "--job-name=high")
    assert slurm.ended(job) == "COMPLETED" and slurm.field(job, "Restarts") == "0"
    slurm.said("scancel", high)
