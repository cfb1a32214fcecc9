"""A run's folder that others write to as well, and what else a run may consist of."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from minitrain.errors import InputError
from minitrain.reliability.checkpoint.background import BackgroundSaver
from minitrain.reliability.checkpoint.folder import (
    LOCK,
    Keep,
    NotSaved,
    checkpoints,
    newest_checkpoint,
    step_of,
    verify,
)
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint

from ...training.toys import toy_state
from .test_background import slow_copies
from .test_save_and_load import bits, trained

ALL = Keep(last=99)


def steps_there(run):
    return list(map(step_of, checkpoints(run)))


# --- one folder, several savers ---


def test_another_runs_steps_are_neither_replaced_nor_retired(tmp_path):
    theirs, mine = trained(toy_state(), 4), toy_state(seed=1)
    folder = save_checkpoint(tmp_path, theirs)
    for step in (2, 4):
        with pytest.raises(NotSaved, match=r"another run has saved step-00000004 there: give each"):
            save_checkpoint(tmp_path, trained(mine, step))
    saver = BackgroundSaver(tmp_path, mine.optimizer)
    saver.save(mine)
    with pytest.raises(NotSaved, match="another run has saved"):
        saver.wait()
    for step in (5, 6, 7):
        save_checkpoint(tmp_path, trained(mine, step), keep=Keep(1))
    assert steps_there(tmp_path) == [4, 7] and verify(folder)["step"] == 4
    with pytest.raises(NotSaved, match="step-00000007"):
        save_checkpoint(tmp_path, trained(theirs, 6))


SAVER = """
import sys
from pathlib import Path
from minitrain.reliability.checkpoint.folder import NotSaved, verify
from minitrain.reliability.checkpoint.folder import Keep
from minitrain.reliability.checkpoint.save import save_checkpoint
from tests.minitrain.training.toys import toy_state
state = toy_state(width=5000)
for step in range(int(sys.argv[2]), 30, 2):
    state.step = step
    try:
        print(verify(save_checkpoint(Path(sys.argv[1]), state, keep=Keep(last=99)))["step"])
    except NotSaved as error:
        assert "another run has saved" in str(error), error
"""


def test_processes_that_save_in_one_folder_leave_one_another_alone(tmp_path):
    """Odd steps and even ones: who is behind is refused, and what was saved is there, and whole."""
    root = Path(__file__).parents[4]
    savers = [
        subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path), str(first)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for first in (1, 2)
    ]
    said = []
    for saver in savers:
        out, error = saver.communicate(timeout=240)
        assert saver.returncode == 0, error
        said += map(int, out.split())
    assert sorted(said) == steps_there(tmp_path) and len(said) >= 14
    assert all(verify(path) for path in checkpoints(tmp_path))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".step")]


def test_a_background_save_and_one_beside_it_are_both_there(tmp_path, monkeypatch):
    state, go = toy_state(), threading.Event()
    slow_copies(monkeypatch, go)
    saver = BackgroundSaver(tmp_path, state.optimizer, keep=ALL)
    state.step = 1
    saver.save(state)
    threading.Timer(0.2, go.set).start()
    state.step = 2
    save_checkpoint(tmp_path, state, keep=ALL)
    saver.wait()
    assert steps_there(tmp_path) == [1, 2] and not (tmp_path / LOCK).exists()


# --- what people put beside the steps ---


def test_links_copies_and_folders_of_ones_own(tmp_path):
    state = toy_state()
    for step in (1, 2):
        save_checkpoint(tmp_path, trained(state, step))
    expected = bits(state)
    newest = tmp_path / "step-00000002"
    (tmp_path / "latest").symlink_to(newest.name)
    os.system(f"cp -r {newest} {tmp_path / 'step-00000002-best'}")
    os.system(f"cp -r {newest} {tmp_path / 'best'}")
    (tmp_path / ".step-notes").mkdir()
    assert steps_there(tmp_path) == [1, 2] and newest_checkpoint(tmp_path) == newest
    for name in ("latest", "step-00000002-best", "best", "."):
        assert bits(load_checkpoint(tmp_path / name, toy_state(seed=1))) == expected, name
    for step in (3, 4):
        save_checkpoint(tmp_path, trained(state, step))
    assert steps_there(tmp_path) == [3, 4]
    kept = {"latest", "step-00000002-best", "best", ".step-notes"}
    assert kept <= set(os.listdir(tmp_path)), "links and copies are whoever's made them"
    with pytest.raises(InputError, match="latest"):
        load_checkpoint(tmp_path / "latest", state)


# --- what else belongs to a run ---


def extras(state):
    schedule = torch.optim.lr_scheduler.MultiStepLR(state.optimizer, [2, 2, 5], gamma=0.5)
    ema = AveragedModel(state.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    mine = {"best": 1.5, "seen": {3: (1, 2)}, "tensor": torch.arange(3), "nan": float("inf")}
    return {"ema": ema, "schedule": schedule, "mine": mine}


def test_an_average_a_schedule_and_ones_own_dict_are_kept(tmp_path):
    state = toy_state()
    state.extra = extras(state)
    for step in (1, 2, 3):
        trained(state, step)
        state.extra["ema"].update_parameters(state.model)
        state.extra["schedule"].step()
    save_checkpoint(tmp_path, state)
    other = toy_state(seed=5)
    other.extra = extras(other)
    mine = other.extra["mine"]
    mine.clear()
    load_checkpoint(tmp_path, other)
    assert mine is other.extra["mine"] and mine.keys() == state.extra["mine"].keys()
    assert mine["seen"] == {3: (1, 2)} and torch.equal(mine["tensor"], torch.arange(3))
    pairs = zip(state.extra["ema"].state_dict().values(), other.extra["ema"].state_dict().values())
    assert all(torch.equal(a, b) for a, b in pairs)
    for left in (state, other):  # both halve the rate once more, at 5
        for _ in range(3):
            left.extra["schedule"].step()
    rates = [[g["lr"] for g in s.optimizer.param_groups] for s in (state, other)]
    assert rates[0] == rates[1] and state.extra["schedule"].last_epoch == 6


@pytest.mark.parametrize("names", [(), ("ema",), ("ema", "mine", "more")])
def test_other_names_are_refused_before_anything_changes(tmp_path, names):
    state = trained(toy_state(), 2)
    state.extra = {"ema": nn.Linear(2, 2), "mine": {"a": 1}}
    save_checkpoint(tmp_path, state)
    other = toy_state(seed=5)
    other.extra = {name: {} for name in names}
    before = bits(other)
    with pytest.raises(InputError, match=r"extra of ema, mine, and this state has"):
        load_checkpoint(tmp_path, other)
    assert bits(other) == before


class Mine:
    pass


@pytest.mark.parametrize("value", [3, None, {"f": Mine()}, {"f": lambda: 1}, [torch.zeros(2)]])
def test_what_cannot_be_kept_is_named(tmp_path, value):
    state = toy_state()
    state.extra = {"mine": value}
    with pytest.raises(InputError, match=r"extra.*mine"):
        save_checkpoint(tmp_path, state)
    assert not (tmp_path / LOCK).exists()
    state.extra = {}
    save_checkpoint(tmp_path, state)


# --- the optimizer's groups and parameters ---


def grouped(*names, rates=(0.1, 0.2, 0.3)):
    state = toy_state()
    named = dict(state.model.named_parameters())
    groups = [{"params": [named[n] for n in own], "lr": lr} for own, lr in zip(names, rates)]
    state.optimizer = torch.optim.AdamW(groups)
    state.model(torch.arange(6)[None]).square().mean().backward()
    state.optimizer.step()
    return state


ONE, TWO = ["embed.weight", "norm.weight"], ["norm.bias", "head.weight"]


@pytest.mark.parametrize(
    "there, here",
    [
        ([ONE, TWO], [ONE + TWO]),
        ([ONE + TWO], [ONE, TWO]),
        ([ONE, TWO], [ONE[:1], ONE[1:] + TWO]),
        ([ONE, TWO], [ONE[:1], ONE[1:], TWO]),
    ],
)
def test_groups_are_neither_merged_nor_split(tmp_path, there, here):
    saved, state = grouped(*there), grouped(*here, rates=(0.5, 0.6, 0.7))
    save_checkpoint(tmp_path, saved)
    before = bits(state)
    with pytest.raises(InputError, match="groups are not those of"):
        load_checkpoint(tmp_path, state)
    assert bits(state) == before


def test_groups_in_another_order_get_their_own_settings(tmp_path):
    save_checkpoint(tmp_path, grouped(ONE, TWO))
    state = load_checkpoint(tmp_path, grouped(TWO[::-1], ONE, rates=(0.5, 0.6)))
    assert [group["lr"] for group in state.optimizer.param_groups] == [0.2, 0.1]
    alike = grouped(ONE, TWO, rates=(0.1, 0.1))
    save_checkpoint(tmp_path / "alike", alike)
    assert bits(load_checkpoint(tmp_path / "alike", grouped(ONE, TWO))) == bits(alike)


def test_fewer_parameters_than_were_saved_are_refused(tmp_path):
    save_checkpoint(tmp_path, grouped(ONE, TWO))
    with pytest.raises(InputError, match=r"state of norm\.bias, which this optimizer does not"):
        load_checkpoint(tmp_path, grouped(ONE, TWO[1:]))
    with pytest.raises(InputError, match=r"optimizer settings for norm\.bias"):
        save_checkpoint(tmp_path / "fewer", grouped(ONE, TWO[1:]))
        load_checkpoint(tmp_path / "fewer", grouped(ONE, TWO))


def test_a_rate_that_is_a_tensor_stays_one(tmp_path):
    state = toy_state()
    state.optimizer = torch.optim.AdamW(state.model.parameters(), lr=torch.tensor(0.25))
    save_checkpoint(tmp_path, state)
    other = toy_state(seed=1)
    other.optimizer = torch.optim.AdamW(other.model.parameters(), lr=torch.tensor(0.5))
    rate = load_checkpoint(tmp_path, other).optimizer.param_groups[0]["lr"]
    assert isinstance(rate, torch.Tensor) and rate.item() == 0.25


def with_temperature(value, seed=0):
    state = toy_state(seed=seed)
    temperature = nn.Parameter(torch.tensor([value]))
    state.optimizer = torch.optim.AdamW([*state.model.parameters(), temperature], lr=0.1)
    (state.model(torch.arange(6)[None]).square().mean() * temperature.exp()).sum().backward()
    state.optimizer.step()
    return state, temperature


def test_a_parameter_that_only_the_optimizer_has_is_kept(tmp_path):
    state, temperature = with_temperature(3.0)
    save_checkpoint(tmp_path, state)
    other, own = with_temperature(7.0, seed=1)
    load_checkpoint(tmp_path, other)
    assert bits(other) == bits(state) and torch.equal(own, temperature)


def test_numbers_that_would_be_rounded_are_refused(tmp_path):
    save_checkpoint(tmp_path, toy_state())
    narrow = toy_state(seed=1)
    narrow.model.bfloat16()
    with pytest.raises(InputError, match=r"is torch.float32 there and torch.bfloat16 here"):
        load_checkpoint(tmp_path, narrow)
    wide = toy_state(seed=1)
    wide.model.double()
    weight = load_checkpoint(tmp_path, wide).model.head.weight
    assert torch.equal(weight, toy_state().model.head.weight.double())


def test_a_compiled_models_names_are_the_models_own(tmp_path):
    state, other = toy_state(), toy_state(seed=1)
    state.model = torch.compile(state.model)
    save_checkpoint(tmp_path, state)
    load_checkpoint(tmp_path, other)
    for (name, got), want in zip(other.model.named_parameters(), state.model.parameters()):
        assert torch.equal(got, want), name


def test_a_buffer_that_cannot_be_filled_is_named_before_anything_changes(tmp_path):
    state, other = toy_state(), toy_state(seed=1)
    for each in (state, other):
        each.model.register_buffer("slopes", torch.ones(1).expand(4))
    save_checkpoint(tmp_path, state)
    before = bits(other)
    with pytest.raises(InputError, match=r"slopes is an expanded tensor here.*: clone\(\) it"):
        load_checkpoint(tmp_path, other)
    assert bits(other) == before


def test_a_modules_extra_state_is_not_dropped(tmp_path):
    class Counted(nn.Linear):
        def get_extra_state(self):
            return {"count": 3}

    state = toy_state()
    state.model.counted = Counted(2, 2)
    with pytest.raises(InputError, match=r"counted\._extra_state is a dict and no tensor"):
        save_checkpoint(tmp_path, state)


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json", "../x", ""])
def test_files_of_ones_own_neither_replace_the_checkpoints_nor_leave_it(tmp_path, name):
    with pytest.raises(InputError, match="give bytes under a plain file name"):
        save_checkpoint(tmp_path / "run", trained(toy_state(), 2), files={name: b"mine"})
    assert not (tmp_path / "run" / "x").exists() and steps_there(tmp_path / "run") == []


@pytest.mark.parametrize("step", [-1, 2.5])
def test_a_step_that_no_folder_can_be_named_by(tmp_path, step):
    state = toy_state()
    state.step = step
    with pytest.raises(InputError, match="give a whole number from 0 up"):
        save_checkpoint(tmp_path, state)


def test_a_linked_step_is_retired_and_what_it_names_stays(tmp_path):
    state = toy_state()
    far = save_checkpoint(tmp_path / "far", trained(state, 1))
    run = tmp_path / "run"
    run.mkdir()
    (run / far.name).symlink_to(far)
    for step in (2, 3):
        save_checkpoint(run, trained(state, step))
    assert steps_there(run) == [2, 3] and verify(far)["step"] == 1
