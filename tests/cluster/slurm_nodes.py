"""Two Slurm nodes on this machine, n0 and n1, on which labs/cluster/slurm.sbatch runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from .torchrun_nodes import AGAIN, FAULTS, ROOT

CLUSTER = ROOT / "labs" / "cluster"
TOOLS = ("munged", "slurmctld", "slurmd", "sbatch")
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
INSTALL = "apt-get install slurmctld slurmd slurm-client munge"


class Slurm:
    """The cluster of slurm_here.sh."""

    def __init__(self, here: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        given = {"HERE": str(here), "PORT": str(port), "PYTHONPATH": str(ROOT)}
        given["PATH"] = f"{os.environ['PATH']}:/usr/sbin"
        self.here, self.environment = here, {**os.environ, **given, "OMP_NUM_THREADS": "1"}

    @staticmethod
    def missing() -> str:
        path = f"{os.environ['PATH']}:/usr/sbin"
        lacking = [tool for tool in TOOLS if not shutil.which(tool, path=path)]
        return f"no {' and no '.join(lacking)} here: {INSTALL}" if lacking else ""

    def __enter__(self) -> Slurm:
        script = ["bash", str(CLUSTER / "slurm_here.sh"), "start"]
        done = subprocess.run(script, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            self.__exit__()
        assert done.returncode == 0, done.stderr
        name, conf = done.stdout.removeprefix("export ").strip().split("=")
        self.environment[name] = conf
        return self

    def __exit__(self, *_) -> None:
        subprocess.run(["bash", str(CLUSTER / "slurm_here.sh"), "stop"], env=self.environment)

    def said(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, file: Path, *options: str) -> str:
        given = ("--parsable", f"--chdir={file.parent}", f"--output={file.with_suffix('.txt')}")
        return self.said("sbatch", *given, *options, str(file))

    def field(self, job: str, name: str) -> str:
        return re.search(rf"\b{name}=(\S+)", self.said("scontrol", "show", "job", job))[1]

    def ended(self, job: str) -> str:
        """The state of a job that is over."""
        until(lambda: self.field(job, "JobState") in OVER, f"job {job} does not end")
        return self.field(job, "JobState")


def until(happened, what: str, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def smaller(folder: Path, name: str, train: list[str], ranks: int = 1, plan: dict | None = None):
    """slurm.sbatch itself, but for the sizes: two nodes with so many ranks each, and no GPU. With a
    plan, things happen to them."""
    text = (CLUSTER / "slurm.sbatch").read_text()
    text = re.sub(r"#SBATCH --(gpus-per-node|cpus-per-task).*\n", "", text)
    torchrun = f"{sys.executable} -m torch.distributed.run"
    if plan is not None:
        node = 'export DRILL_NODE=$([ "$SLURM_NODEID" = 1 ] && echo second || echo first)'
        torchrun = f"bash -c '{node}; exec {torchrun} \"$@\"' -"
    program = "-m minitrain" if plan is None else f"{FAULTS} '{json.dumps(plan)}'"
    pairs = (
        (r"RUN=runs/100M-mesh\n", f"RUN=runs/{name}\n"),
        (r"srun torchrun", f"srun {torchrun}"),
        (r"--max-restarts 3", f"--max-restarts {AGAIN}"),
        (r"--nproc-per-node 8", f"--nproc-per-node {ranks}"),
        (r"-m minitrain train --preset(.|\n)*runs/100M-mesh", f"{program} train {' '.join(train)}"),
    )
    for old, new in pairs:
        text, count = re.subn(old, lambda _, new=new: new, text, count=1)
        assert count == 1, old
    file = folder / f"{name}.sbatch"
    file.write_text(text)
    return file


class SlurmNodes:
    def __init__(self, folder: Path, plan: dict, arguments: list[str]) -> None:
        self.folder, self.slurm = folder, Slurm(folder / "slurm")
        train = [*arguments[:-1], "runs/drill"]
        (folder / "runs").mkdir()
        (folder / "run").symlink_to(folder / "runs" / "drill")
        self.file = smaller(folder, "drill", train, 2, plan)

    missing = Slurm.missing

    def __enter__(self) -> SlurmNodes:
        self.slurm.__enter__()
        return self

    def __exit__(self, *_) -> None:
        self.slurm.__exit__()

    def start(self) -> None:
        self.job = self.slurm.submit(self.file)

    def replace_node(self) -> None:
        """With the ranks its daemons are gone: srun ends, the job asks for its requeue, and waits
        until they come back."""
        psutil.Process(int((self.slurm.here / "slurmd-n1.pid").read_text())).kill()
        until(lambda: self.slurm.field(self.job, "Restarts") == "1", "the job is not requeued")
        conf = self.slurm.environment["SLURM_CONF"]
        self.slurm.said("slurmd", "-f", conf, "-N", "n1")

    def terminate(self) -> None:
        """By a job that goes first, which Slurm then does without being asked."""
        first = self.folder / "first.sh"
        first.write_text("#!/bin/sh\nsrun sleep 1\n")
        job = self.slurm.submit(first, "--partition=high", "--nodes=2")
        assert self.slurm.ended(job) == "COMPLETED"

    def go_on(self) -> None:
        """It has been requeued."""

    def wait(self) -> None:
        assert self.slurm.ended(self.job) == "COMPLETED", self.said()

    def check(self) -> None:
        assert self.slurm.field(self.job, "JobState") not in OVER, self.said()

    def said(self) -> str:
        return self.file.with_suffix(".txt").read_text(errors="replace")[-5000:]
