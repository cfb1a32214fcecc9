"""What goes wrong on real ranks: each drill ends with the right loss, and the log names the rank."""

from __future__ import annotations

import os
import signal
import statistics
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from minitrain.errors import InputError
from minitrain.parallel.ddp import all_reduce_gradients
from minitrain.ranks.errors import RankDied
from minitrain.ranks.launch import launch
from minitrain.reliability.checkpoint.contents import CheckpointRanks
from minitrain.reliability.checkpoint.folder import checkpoints
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.reliability.elastic import share_of_batch
from minitrain.reliability.events import EventLog
from minitrain.reliability.hangs import hangs_watched, suspects
from minitrain.reliability.restart import launch_until_done
from minitrain.reliability.spikes import SpikeGuard
from minitrain.reliability.stragglers import StragglerWatch, slow_ranks_naive
from minitrain.training.loop import Peers, TrainConfig, train

from ..training.toys import Batch, random_batch, toy_state

BATCH, STEPS, EVERY = 12, 16, 4  # rows; of a run; between saves

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")


class Rows:
    """A rank's rows of batches that are a function of their number; any number of ranks."""

    def __init__(self, rank: int, ranks: int, accumulate: int = 1):
        self.rank, self.ranks, self.accumulate, self.place = rank, ranks, accumulate, 0

    def __iter__(self):
        while True:
            whole = random_batch(BATCH, valid=1.0, seed=self.place // self.accumulate)
            own = slice(self.rank, None, self.ranks)
            rows = [t[own].chunk(self.accumulate) for t in (whole.tokens, whole.targets)]
            part = self.place % self.accumulate
            self.place += 1
            yield Batch(*(parts[part] for parts in rows))

    def state_dict(self):
        return {"step": self.place // self.accumulate}

    def load_state_dict(self, state):
        self.place = state["step"] * self.accumulate


def run(group, folder, trouble=None, guard=False, room=BATCH, **options):
    """STEPS steps on these ranks, from the newest checkpoint -> (losses of this call, weights)."""
    share = share_of_batch(BATCH, group.size, room)
    state = toy_state(seed=0)
    state.loader = Rows(group.rank, group.size, share.accumulate)
    ranks = CheckpointRanks(group.rank, group.size, group.barrier, may_change=True)
    log = EventLog(folder / "events.jsonl", group.rank)
    if checkpoints(folder):
        load_checkpoint(folder, state, ranks)

    def after_step(record):
        if record.step % EVERY == 0:
            save_checkpoint(folder, state, ranks=ranks)

    def average():
        if trouble:
            trouble(group, state)
        all_reduce_gradients(group, state.model)

    peers = Peers(group.size, group.all_reduce, average)
    config = TrainConfig(steps=STEPS, lr=0.02, accumulate=share.accumulate)
    accept = SpikeGuard(state, log, warmup=4, back=3, z=20.0, patience=2) if guard else None
    callbacks = [after_step, *(make(group, log, state, ranks) for make in options.get("more", ()))]
    watched = hangs_watched(group, log, options["hangs"]) if "hangs" in options else nullcontext()
    stop = options.get("stop", lambda: False)
    with watched:
        result = train(
            state.model, state.loader, config, callbacks, peers, state, accept=accept, stop=stop
        )
    return result.losses, [p.detach().clone() for p in state.model.parameters()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return launch(run, tmp_path_factory.mktemp("undisturbed"), ranks=3)[0]


def at(rank: int, step: int, folder: Path, what):
    """`what(state)` once, on one rank, in one step of the first attempt."""

    def trouble(group, state):
        done = folder / f"trouble-{rank}-{step}"
        if group.rank == rank and state.step == step and not done.exists():
            done.touch()
            what(state)

    return trouble


def die(state):
    os.kill(os.getpid(), signal.SIGKILL)


def assert_same(found, undisturbed):
    for losses, weights in found:
        assert losses == undisturbed[0][-len(losses) :] and len(losses) < STEPS
        assert all(torch.equal(a, b) for a, b in zip(weights, undisturbed[1]))


def test_of_four_ranks_three_are_left_and_the_batch_is_the_same(tmp_path, undisturbed):
    log = EventLog(tmp_path / "events.jsonl")
    lost = at(2, 9, tmp_path, die)
    found = launch_until_done(run, tmp_path, lost, False, 2, ranks=4, log=log, shrink_to=BATCH)
    assert [(e["rank"], e["attempt"]) for e in log.read("failed")] == [(2, 0)]
    assert [e["ranks"] for e in log.read("restarted")] == [3] == [len(found)]
    losses, weights = found[0]
    assert len(losses) == STEPS - 8, "from step 8 on, not from the start"
    torch.testing.assert_close(losses, undisturbed[0][8:], rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(weights, undisturbed[1]):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def hang(state):
    time.sleep(60)


def stop_process(state):
    os.kill(os.getpid(), signal.SIGSTOP)


def hanging(group, *arguments):
    return run(group, *arguments, hangs=2.0)


@pytest.mark.parametrize("trouble, said", [(hang, ["stuck"]), (stop_process, [])])
def test_a_rank_hangs_or_is_stopped(tmp_path, undisturbed, trouble, said):
    log = EventLog(tmp_path / "events.jsonl")
    found = launch_until_done(hanging, tmp_path, at(1, 6, tmp_path, trouble), ranks=3, log=log)
    assert_same(found, undisturbed)
    assert suspects(log, 3) == [1]
    assert [e["event"] for e in log.read() if e["rank"] == 1 and e["event"] != "failed"] == said
    waits = log.read("waits")
    assert {e["rank"] for e in waits} == {0, 2} and "all_reduce" in waits[0]["operation"]


def make_nan(state):
    next(state.model.parameters()).grad[0] = float("nan")


def test_a_nan_on_one_rank_is_skipped_on_all(tmp_path, undisturbed):
    found = launch(run, tmp_path, at(1, 7, tmp_path, make_nan), True, ranks=3)
    log = EventLog(tmp_path / "events.jsonl")
    assert [(e["rank"], e["step"], e["grad_norm"]) for e in log.read()] == [(0, 7, "nan")]
    for losses, weights in found:
        assert losses[:7] == undisturbed[0][:7] and len(losses) == STEPS
        assert all(torch.equal(a, b) for a, b in zip(weights, found[0][1]))
        assert all(w.isfinite().all() for w in weights) and losses[-1] < losses[0]


def slow(group, state):
    time.sleep(0.005 + 0.06 * (group.rank == 1))


def watch(group, log, state, ranks):
    return StragglerWatch(group, log, every=5, factor=1.5)


def watched_run(group, folder):
    """The median of this rank's whole steps, in seconds."""
    ends = []
    run(group, folder, slow, more=[watch, lambda *parts: lambda record: ends.append(group.now())])
    return statistics.median(late - early for early, late in pairwise(ends))


def test_a_slow_rank_is_named_though_all_take_the_same_time(tmp_path):
    seconds = launch(watched_run, tmp_path, ranks=3)
    assert slow_ranks_naive(seconds) == []
    events = EventLog(tmp_path / "events.jsonl").read("slow")
    assert {e["rank"] for e in events} == {1} and len(events) >= 2
    assert all(e["seconds"] > 1.5 * e["median"] for e in events)


def test_what_a_person_did_wrong_is_not_tried_again(tmp_path):
    def wrong(group):
        raise InputError("--lr is no number")

    log = EventLog(tmp_path / "events.jsonl")
    with pytest.raises(InputError, match="is no number"):
        launch_until_done(wrong, ranks=2, log=log)
    with pytest.raises(RankDied):
        launch_until_done(always_dies, ranks=2, log=log, restarts=1)
    assert [e["attempt"] for e in log.read("failed")] == [0, 1]


def always_dies(group):
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()
