"""A run that has gone back, on the disk: nothing newer than where it is survives, whoever kills it when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from minitrain.precision.master_weights import MasterWeights
from minitrain.reliability.checkpoint.background import BackgroundSaver
from minitrain.reliability.checkpoint.folder import Keep, checkpoints, step_of
from minitrain.reliability.checkpoint.levels import download, remote_steps, upload
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.reliability.spikes import SpikeGuard

from ..training.toys import toy_state
from .checkpoint.test_background import slow_copies

ALL = Keep(last=9)


def weigh(state, step, value=None):
    state.step = step
    with torch.no_grad():
        state.model.head.weight.fill_(float(step if value is None else value))


def steps_there(run):
    return list(map(step_of, checkpoints(run)))


def found(run, wrap=lambda optimizer: optimizer):
    state = toy_state(seed=9)
    state.optimizer = wrap(state.optimizer)
    load_checkpoint(run, state)
    return state.step, state.model.head.weight.unique().tolist()


def saved(run, steps):
    state = toy_state()
    for step in steps:
        weigh(state, step)
        save_checkpoint(run, state, keep=ALL)
    return state


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("step", [12, 15, 20])
def test_the_step_that_a_run_comes_to_again_is_saved_again(tmp_path, in_background, step):
    state = saved(tmp_path, (5, 10, 15))
    load_checkpoint(tmp_path / "step-00000010", state)
    weigh(state, step, 77.0)
    saver = BackgroundSaver(tmp_path, state.optimizer, keep=ALL)
    saver.save(state) if in_background else save_checkpoint(tmp_path, state, keep=ALL)
    saver.wait()
    assert found(tmp_path) == (step, [77.0])
    assert steps_there(tmp_path) == ([5, 10, 15, 20] if step == 20 else [5, 10, step])


def test_old_ones_are_retired_by_what_is_left(tmp_path):
    state = saved(tmp_path, (5, 10, 12, 15))
    weigh(state, 10, 77.0)
    save_checkpoint(tmp_path, state, keep=Keep(last=2))
    assert steps_there(tmp_path) == [5, 10] and found(tmp_path) == (10, [77.0])


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, MasterWeights])
def test_a_rollback_and_a_load_wait_until_the_background_save_has_copied(
    tmp_path, monkeypatch, wrap
):
    state, go = toy_state(), threading.Event()
    state.optimizer = wrap(state.optimizer)
    slow_copies(monkeypatch, go)
    saver = BackgroundSaver(tmp_path, state.optimizer, keep=ALL)
    guard = SpikeGuard(state, warmup=5, back=5, patience=1)
    for step in range(16):
        weigh(state, step)
        assert guard(2.0 + 0.01 * (step % 3), 1.0)
    saver.save(state)
    threading.Timer(0.2, go.set).start()
    assert not guard(50.0, 1.0)
    assert state.step == 10 and state.model.head.weight.unique().tolist() == [10.0]
    saver.wait()
    assert found(tmp_path, wrap) == (15, [15.0])
    weigh(state, 20)
    go.clear()
    saver.save(state)
    threading.Timer(0.2, go.set).start()
    load_checkpoint(tmp_path / "step-00000015", state)
    saver.wait()
    assert found(tmp_path, wrap) == (20, [20.0])


def test_extras_go_back_too():
    state, ema = toy_state(), torch.nn.Linear(2, 2)
    state.extra = {"ema": ema, "mine": {"best": 1.0}}
    guard = SpikeGuard(state, warmup=5, back=5, patience=1)
    for step in range(16):
        weigh(state, step)
        with torch.no_grad():
            ema.weight.fill_(float(step))
        state.extra["mine"]["best"] = step
        assert guard(2.0 + 0.01 * (step % 3), 1.0)
    guard(50.0, 1.0)
    assert state.step == 10 == state.extra["mine"]["best"]
    assert ema.weight.unique().tolist() == [10.0]


def test_another_home_forgets_them_too(tmp_path):
    state, url = saved(tmp_path / "a", (5, 10, 15)), f"file://{tmp_path}/far"
    for path in checkpoints(tmp_path / "a"):
        upload(path, url, ALL)
    upload(tmp_path / "a" / "step-00000005", url, ALL)
    assert remote_steps(url) == [5, 10, 15], "an older one alone says nothing"
    weigh(state, 10, 77.0)
    upload(save_checkpoint(tmp_path / "a", state, keep=ALL), url, ALL)
    assert remote_steps(url) == [5, 10]
    download(url, tmp_path / "b")
    assert found(tmp_path / "b") == (10, [77.0])


ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no fork")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["sync", pytest.param("background", marks=pytest.mark.full)])
def test_killed_before_each_operation_on_a_file(tmp_path, kind):
    """It resumes where it was before it went back, or where it went to with the next batches, and
    never between; after one more save nothing is left of the kill."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("rollback_drill.py")), str(tmp_path), kind],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout.splitlines()[-1])
    before, after = [15, [15.0], 15], [10, [10.0], 15]
    outcomes = [kill[:3] for kill in kills]
    gone = outcomes.index(after)
    assert len(kills) > 30 and gone > 20
    assert outcomes == [before] * gone + [after] * (len(kills) - gone)
    assert kills[-1][3] == [5, 10] and all(kill[4] == [] for kill in kills)
