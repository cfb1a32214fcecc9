"""kill -9 at random instants of a run that saves all the time; a script of its own, so that a child is
a fork of a process that has torch imported and has computed nothing yet.

    python kill_drill.py FOLDER sync|background|ranks KILLS SEED   -> a line of JSON

Each child goes on from the newest checkpoint, and notes every loss, to the last bit, and every save
that is complete. After each kill the newest checkpoint must load, and be none that is older than what
the child had noted.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch

from minitrain.parallel.ddp import all_reduce_gradients
from minitrain.ranks.errors import RankError
from minitrain.ranks.launch import launch, prepare
from minitrain.reliability.checkpoint.background import BackgroundSaver
from minitrain.reliability.checkpoint.contents import CheckpointRanks
from minitrain.reliability.checkpoint.folder import checkpoints, step_of
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.training.loop import ALONE, Peers, TrainConfig, train

sys.path.insert(0, str(Path(__file__).parents[4]))
from tests.minitrain.training.toys import toy_state

EVERY, MOST = 3, 10**6  # steps between saves; of a run


def child(folder: Path, kind: str, group=None, last: int = MOST) -> None:
    state = toy_state(seed=0, dropout=0.3, width=2000)
    ranks, peers = CheckpointRanks(may_change=True), ALONE
    if group is not None:
        ranks = CheckpointRanks(group.rank, group.size, group.barrier)
        average = lambda: all_reduce_gradients(group, state.model)  # noqa: E731
        peers = Peers(group.size, group.all_reduce, average)
        torch.manual_seed(group.rank)
        (folder / f"pid-{group.rank}").write_text(str(os.getpid()))
    run, speaks = folder / "run", ranks.rank == 0

    def note(*words):
        if speaks:
            with open(folder / "noted", "a") as file:
                file.write(" ".join(map(str, words)) + "\n")

    saver = BackgroundSaver(run, state.optimizer, ranks, after=lambda p: note("saved", step_of(p)))
    if checkpoints(run):
        load_checkpoint(run, state, ranks)

    def after_step(record):
        note("loss", record.step, record.loss.hex())
        if record.step % EVERY == 0 and kind == "background":
            saver.save(state)
        elif record.step % EVERY == 0 and kind == "sync":
            save_checkpoint(run, state, ranks=ranks)
            note("saved", record.step)

    config = TrainConfig(steps=MOST, lr=0.01, warmup=0.5)
    train(
        state.model,
        state.loader,
        config,
        [after_step],
        peers,
        state,
        stop=lambda: state.step >= last,
    )
    saver.wait()


def read(folder: Path) -> tuple[dict[int, set[str]], int]:
    """Every loss noted of each step, and the newest save that was."""
    losses: dict[int, set[str]] = {}
    saved = 0
    path = folder / "noted"
    for line in path.read_text().splitlines() if path.exists() else ():
        what, step, *value = line.split(" ")
        if what == "saved":
            saved = max(saved, int(step))
        elif value:
            losses.setdefault(int(step), set()).add(value[0])
    return losses, saved


def wait_for_a_save(folder: Path, before: int) -> None:
    until = time.monotonic() + 30
    while read(folder)[1] == before and time.monotonic() < until:
        time.sleep(0.005)


def killed_alone(folder: Path, kind: str, waits: bool, delay: float) -> None:
    before = read(folder)[1]
    pid = os.fork()
    if pid == 0:
        child(folder, kind)
        os._exit(0)
    if waits:
        wait_for_a_save(folder, before)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def on_ranks(group, folder: Path, kind: str, last: int) -> None:
    child(folder, kind, group, last)


def killed_rank(folder: Path, waits: bool, delay: float, rank: int) -> None:
    before = read(folder)[1]
    for path in folder.glob("pid-*"):
        path.unlink()

    def kill() -> None:
        path = folder / f"pid-{rank}"
        while not (path.exists() and path.read_text()):
            time.sleep(0.001)
        if waits:
            wait_for_a_save(folder, before)
        time.sleep(delay)
        os.kill(int(path.read_text()), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with suppress(RankError):
        launch(on_ranks, folder, "background", MOST, ranks=2)
    thread.join()


def drill(folder: Path, kind: str, kills: int, seed: int) -> dict:
    chance, halves, lost, before = random.Random(seed), 0, [], 0
    if kind == "ranks":
        prepare("minitrain.parallel.ddp", "minitrain.training.loop")
    for _ in range(kills):
        when = (chance.random() < 0.8, chance.uniform(0.0, 0.15))
        if kind == "ranks":
            killed_rank(folder, *when, chance.randrange(2))
        else:
            killed_alone(folder, kind, *when)
        losses, saved = read(folder)
        halves += any((folder / "run").glob(".step-*"))
        if saved:
            state = load_checkpoint(
                folder / "run", toy_state(seed=4, width=2000),
                CheckpointRanks(0, 1 + (kind == "ranks")),
            )  # fmt: skip
            assert state.step >= saved, f"{saved} was complete, and {state.step} is the newest"
            lost.append(max(losses) - state.step)
        assert len(checkpoints(folder / "run")) <= 3
        before = max(before, saved)
    losses, _ = read(folder)
    return {"losses": losses, "halves": halves, "most_lost": max(lost), "newest": before}


def main() -> None:
    torch.set_num_threads(1)
    folder, kind, kills, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    found = drill(folder, kind, kills, seed)
    losses = found.pop("losses")
    whole, last = folder / "whole", max(losses)
    whole.mkdir()
    if kind == "ranks":
        launch(on_ranks, whole, "", last, ranks=2)
    else:
        child(whole, "", last=last)
    expected, _ = read(whole)
    found["steps"] = last
    found["other_losses"] = sum(values != expected[step] for step, values in losses.items())
    found["repeated"] = sum(step in losses for step in expected) == last
    print(json.dumps(found))


if __name__ == "__main__":
    main()
