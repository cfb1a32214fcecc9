"""One run to which everything happens, under each scheduler: two nodes with two ranks each.

    slow ─ nan ─ spike ─ killed ─ hangs ─ flipped bit ─ node gone ─ SIGTERM ─ done

It ends with the weights of a run to which nothing happens but that two batches are left out, to
the last bit; and its log says what happened, when and to which rank.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from minitrain.reliability.checkpoint.folder import newest_checkpoint
from minitrain.reliability.events import EventLog

from ..minitrain.apps.train.test_command import SMALL, has_logged, log
from .ray_nodes import RayNodes
from .slurm_nodes import SlurmNodes
from .torchrun_nodes import FAULTS, ROOT, TorchrunNodes

SCHEDULERS = {"torchrun": TorchrunNodes, "slurm": SlurmNodes, "ray": RayNodes}
STEPS = 80
TROUBLES = {  # to which rank, after which step
    "slow": (1, 20),
    "nan": (2, 23),
    "spike": (1, 28),
    "kill": (1, 32),
    "hang": (3, 35),
    "flip": (2, 38),
    "node": (None, 41),
}
SIGTERM_AFTER = 44
WATCHES = ["--skip-spikes", "--audit", "--hang-seconds", "15"]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


def command(folder: Path, out: str) -> list[str]:
    text = folder / "text.txt"
    lines = [f"{i} quick foxes jump over {i + 1} lazy dogs, and nobody minds." for i in range(900)]
    text.write_text("\n".join(lines))
    return [*SMALL, "--data", str(text), "--steps", str(STEPS), *WATCHES, "--out", out]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[list[float], dict]:
    """Losses and weights, where the steps after 23 and 28 are left out and nothing else happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    left_out = [("refuse", 0, TROUBLES[name][1]) for name in ("nan", "spike")]
    plan = json.dumps({"folder": str(folder), "troubles": left_out, "every": 1e9})
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    given = [*run, str(FAULTS), plan, "train", *command(folder, "run")]
    done = subprocess.run(given, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [e["event"] for e in EventLog(folder / "run" / "events.jsonl").read()].count(
        "began"
    ) == 1
    return finished(folder / "run")


def finished(run: Path) -> tuple[list[float], dict]:
    losses = [row["loss"] for row in log(run)]
    return losses, load_file(newest_checkpoint(run) / "model.safetensors")


class Drilled:
    """What is left of the run: its folder, its events, and the ranks that were on the lost node."""

    def __init__(self, folder: Path, scheduler: str) -> None:
        self.run, self.scheduler = folder / "run", scheduler
        self.events = EventLog(self.run / "events.jsonl").read()
        self.on_lost_node = sorted(
            int(mark.name.removeprefix("was-second-")) for mark in folder.glob("was-second-*")
        )

    def sessions(self) -> list[list[dict]]:
        """The events of each, the first of which says that it began."""
        found: list[list[dict]] = []
        before: list[dict] = []  # who of the last session was silent is said at the next's start
        for event in self.events:
            if event["event"] == "silent":
                before.append(event)
            elif event["event"] in ("began", "resumed"):
                found.append([*before, event])
                before = []
            else:
                found[-1].append(event)
        return found

    def said(self, event: str) -> list[tuple[int, int | None]]:
        return [(e["rank"], e["step"]) for e in self.events if e["event"] == event]

    def lost_before(self, step: int) -> list[int]:
        """Who was silent when the run came back to this step."""
        (session,) = [
            s for s in self.sessions() if ("resumed", step) in [(e["event"], e["step"]) for e in s]
        ]
        return [e["rank"] for e in session if e["event"] == "silent"]


@pytest.fixture(scope="module", params=SCHEDULERS)
def drilled(request, tmp_path_factory) -> Drilled:
    scheduler = SCHEDULERS[request.param]
    if scheduler.missing():
        pytest.skip(scheduler.missing())
    folder = tmp_path_factory.mktemp(request.param)
    troubles = [(name, rank, step) for name, (rank, step) in TROUBLES.items()]
    plan = {"folder": str(folder), "troubles": troubles}
    with scheduler(folder, plan, command(folder, str(folder / "run"))) as nodes:

        def until(happened, what: str, seconds: float = 900) -> None:
            deadline = time.monotonic() + seconds
            while not happened():
                nodes.check()
                assert time.monotonic() < deadline, f"{what}: {nodes.said()}"
                time.sleep(0.1)

        nodes.start()
        until(lambda: [*folder.glob("node-*")], "no node is lost")
        nodes.replace_node()
        until(lambda: has_logged(folder / "run", SIGTERM_AFTER), "it does not go on without it")
        (folder / "slowly").touch()  # or it would be done before it hears of it
        nodes.terminate()
        (folder / "slowly").unlink()
        nodes.go_on()
        nodes.wait()
    return Drilled(folder, request.param)


def test_the_loss_is_the_right_one(drilled, undisturbed):
    losses, weights = finished(drilled.run)
    assert losses == undisturbed[0] and len(losses) == STEPS
    assert all(weights[name].equal(wanted) for name, wanted in undisturbed[1].items())


def test_a_slow_rank(drilled):
    rank, step = TROUBLES["slow"]
    assert (rank, step) in drilled.said("slow")


def test_a_nan_and_a_spike(drilled):
    skipped = [(e["step"], e["ranks"]) for e in drilled.events if e["event"] == "skipped"]
    assert skipped == [(step, [rank]) for rank, step in (TROUBLES["nan"], TROUBLES["spike"])]
    assert [e["grad_norm"] == "nan" for e in drilled.events if e["event"] == "skipped"] == [1, 0]


def test_a_killed_rank(drilled):
    """Ray ends the others at once, who may have no time for a word; one has."""
    rank, step = TROUBLES["kill"]
    lost = drilled.lost_before(step)
    assert rank in lost and len(lost) < 4
    assert lost == [rank] or drilled.scheduler == "ray"


def test_a_rank_that_hangs(drilled):
    rank, step = TROUBLES["hang"]
    assert drilled.said("stuck") == [(rank, None)] and drilled.lost_before(step) == []
    assert {waits for waits, _ in drilled.said("waits")} == {0, 1, 2, 3} - {rank}
    (stuck,) = [e for e in drilled.events if e["event"] == "stuck"]
    assert "faults.py" in stuck["at"]


def test_a_flipped_bit(drilled):
    rank, step = TROUBLES["flip"]
    assert drilled.said("corrupt") == [(rank, step + 1)] and drilled.lost_before(step) == []


def test_a_node_that_is_gone(drilled):
    assert len(drilled.on_lost_node) == 2
    lost = drilled.lost_before(TROUBLES["node"][1])
    assert set(drilled.on_lost_node) <= set(lost) and len(lost) < 4
    assert lost == drilled.on_lost_node or drilled.scheduler == "ray"


def test_sigterm(drilled):
    ((rank, step),) = drilled.said("stopped")
    assert rank == 0 and SIGTERM_AFTER <= step < STEPS and drilled.lost_before(step) == []
    resumed = [s for _, s in drilled.said("resumed")]
    assert resumed == [TROUBLES[name][1] for name in ("kill", "hang", "flip", "node")] + [step]
