"""What is written beside the training is the state at the save, whatever the training does next."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from minitrain.errors import InputError
from minitrain.ranks.launch import launch
from minitrain.reliability.checkpoint import background
from minitrain.reliability.checkpoint.background import BackgroundSaver
from minitrain.reliability.checkpoint.contents import CheckpointRanks
from minitrain.reliability.checkpoint.folder import NotSaved, checkpoints, step_of
from minitrain.reliability.checkpoint.load import load_checkpoint

from ...training.toys import toy_state
from .test_save_and_load import bits, trained


def slow_copies(monkeypatch, until=None):
    """The copy of a tensor takes its time, or waits for an event, so that a step comes in between."""
    copy = BackgroundSaver._copy

    def slow(self, key, tensor):
        if threading.current_thread() is not threading.main_thread():
            if until is None:
                time.sleep(0.01)
            else:
                assert until.wait(20)
        return copy(self, key, tensor)

    monkeypatch.setattr(BackgroundSaver, "_copy", slow)


def test_a_step_waits_for_the_copy(tmp_path, monkeypatch):
    slow_copies(monkeypatch)
    state = trained(toy_state(dropout=0.3), 3)
    saver = BackgroundSaver(tmp_path, state.optimizer)
    expected = bits(state)
    saver.save(state)
    trained(state, 6)
    assert saver.stall_seconds > 0.05, "16 tensors, 10 ms each"
    saver.wait()
    assert bits(load_checkpoint(tmp_path, toy_state(seed=1))) == expected


def test_a_step_that_does_not_wait_tears_the_checkpoint(tmp_path, monkeypatch):
    trained_on = threading.Event()
    slow_copies(monkeypatch, trained_on)
    state = trained(toy_state(dropout=0.3), 3)
    saver = BackgroundSaver(tmp_path, state.optimizer)
    saver.wait_copied = lambda: None
    expected = bits(state)
    saver.save(state)
    trained(state, 6)
    trained_on.set()
    saver.wait()
    assert bits(load_checkpoint(tmp_path, toy_state(seed=1))) != expected


def test_one_save_waits_for_the_other_and_every_step_is_there(tmp_path):
    state, uploaded = toy_state(), []
    saver = BackgroundSaver(tmp_path, state.optimizer, after=uploaded.append)
    for step in (1, 2, 3):
        saver.save(trained(state, step))
    saver.save(state)  # the same step again: nothing is written
    saver.wait()
    assert list(map(step_of, checkpoints(tmp_path))) == [2, 3]
    assert [path.name[-1] for path in uploaded] == ["1", "2", "3"]


def test_an_error_of_the_writer_reaches_the_trainer_once(tmp_path, monkeypatch):
    state = toy_state()
    saver = BackgroundSaver(tmp_path, state.optimizer)

    def broken(*arguments):
        raise ZeroDivisionError("what nobody has thought of")

    with monkeypatch.context() as patch:
        patch.setattr(background, "finish", broken)
        saver.save(trained(state, 1))
        with pytest.raises(NotSaved, match=r"step 1 was not saved .* nobody has thought of"):
            saver.save(trained(state, 2))
    saver.save(state)
    saver.wait()
    assert list(map(step_of, checkpoints(tmp_path))) == [2]
    with pytest.raises(InputError, match="has no register_step_pre_hook"):
        BackgroundSaver(tmp_path, object())


def test_what_follows_a_save_may_fail_and_the_training_goes_on(tmp_path, capsys):
    state, failing = toy_state(), [True, False, True]

    def upload(checkpoint):
        if failing.pop(0):
            raise OSError("no network")

    saver = BackgroundSaver(tmp_path, state.optimizer, after=upload)
    for step in (1, 2):
        saver.save(trained(state, step))
    saver.wait()
    assert "step-00000001 is whole, but what follows failed: no network" in capsys.readouterr().err
    saver.save(trained(state, 3))
    with pytest.raises(InputError, match="step-00000003 is whole, but what follows failed"):
        saver.wait()


def save_beside(group, run):
    state = toy_state(dropout=0.3)
    ranks = CheckpointRanks(group.rank, group.size, group.barrier)
    saver = BackgroundSaver(run, state.optimizer, ranks)
    torch.manual_seed(group.rank)
    for step in (2, 4):
        saver.save(trained(state, step))
    saver.wait()
    expected = bits(state)
    found = bits(load_checkpoint(run, toy_state(seed=5), ranks))
    own = {"rng", "loader"} if group.rank else set(expected)  # the model is rank 0's
    return all(found[name] == expected[name] for name in own), expected["rng"]


def test_on_ranks_each_with_its_own_generators(tmp_path):
    found = launch(save_beside, tmp_path, ranks=3)
    assert all(same for same, _ in found) and len({rng for _, rng in found}) == 3


def test_buffers_that_a_forward_changes_are_copied_at_once(tmp_path, monkeypatch):
    slow_copies(monkeypatch)
    state = toy_state()
    state.model.register_buffer("seen", torch.zeros(3))
    saver = BackgroundSaver(tmp_path, state.optimizer)
    saver.save(state)
    state.model.seen += 1  # as a forward would, without a step
    saver.wait()
    other = toy_state(seed=1)
    other.model.register_buffer("seen", torch.ones(3))
    assert load_checkpoint(tmp_path, other).model.seen.tolist() == [0, 0, 0]
