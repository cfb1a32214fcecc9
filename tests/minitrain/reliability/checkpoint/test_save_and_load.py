from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from minitrain.errors import InputError
from minitrain.generators import restore_torch, torch_states
from minitrain.parallel.ddp import all_reduce_gradients
from minitrain.ranks.launch import launch
from minitrain.reliability.checkpoint.contents import CheckpointRanks, own_names, whole_layout
from minitrain.reliability.checkpoint.folder import (
    MANIFEST,
    Keep,
    checkpoints,
    newest_checkpoint,
    verify,
)
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.training.loop import Peers, TrainConfig, train
from minitrain.training.state import TrainState

from ...parallel.zero import zero_toys
from ...training.toys import ToyLoader, toy_state

CONFIG = {"lr": 0.02, "warmup": 0.2, "accumulate": 2}


def trained(state, steps, total=12):
    """Steps `state` on to step `steps` of a run of `total`."""
    config = TrainConfig(steps=total, **CONFIG)
    train(state.model, state.loader, config, state=state, stop=lambda: state.step >= steps)
    return state


def bits(state) -> dict:
    """Everything that a run consists of, as bytes."""
    optimizer = state.optimizer.state_dict()
    return {
        **{f"model.{name}": t.numpy().tobytes() for name, t in state.model.state_dict().items()},
        **{
            f"optimizer.{index}.{name}": value.numpy().tobytes()
            for index, values in optimizer["state"].items()
            for name, value in values.items()
        },
        "groups": json.dumps(optimizer["param_groups"]),
        "loader": state.loader.state_dict(),
        "counts": (state.step, state.tokens),
        "rng": torch.get_rng_state().numpy().tobytes(),
    }


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("stopped", [1, 5, 11])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, tied, stopped):
    options = {"dropout": 0.3, "tied": tied}  # dropout draws from the global generator
    expected = bits(trained(toy_state(seed=0, **options), 12))

    half = trained(toy_state(seed=0, **options), stopped)
    save_checkpoint(tmp_path, half)
    resumed = toy_state(seed=7, **options)  # other weights, other random state
    torch.randn(100), random.random(), np.random.rand()
    load_checkpoint(tmp_path, resumed)
    assert bits(trained(resumed, 12)) == expected


@pytest.mark.parametrize("forgotten", ["optimizer", "loader", "rng", "step"])
def test_each_part_is_needed_for_that(tmp_path, forgotten):
    expected = bits(trained(toy_state(seed=0, dropout=0.3), 12))
    save_checkpoint(tmp_path, trained(toy_state(seed=0, dropout=0.3), 5))
    resumed = toy_state(seed=7, dropout=0.3)
    fresh = toy_state(seed=7, dropout=0.3)
    before = torch_states([torch.device("cpu")])
    load_checkpoint(tmp_path, resumed)
    if forgotten == "optimizer":
        resumed.optimizer = toy_state().optimizer.__class__(resumed.model.parameters(), lr=0.01)
    elif forgotten == "loader":
        resumed.loader.load_state_dict(fresh.loader.state_dict())
    elif forgotten == "rng":
        restore_torch(before)
    else:
        resumed.step = 0
    found = bits(trained(resumed, 12))
    assert any(found[name] != expected[name] for name in found if name.startswith("model."))


def test_the_models_tensors_may_have_other_names(tmp_path):
    def named(model):  # and be views of them, as a hub's per-expert matrices are
        return {f"hub.{name}": tensor.t() for name, tensor in own_names(model).items()}

    state = trained(toy_state(), 2)
    folder = save_checkpoint(tmp_path, state, layout=whole_layout(named))
    stored = load_file(folder / "model.safetensors")
    assert torch.equal(stored["hub.head.weight"].t(), state.model.head.weight)
    other = load_checkpoint(folder, toy_state(seed=4), layout=whole_layout(named))
    assert bits(other) == bits(state)


def test_files_counts_and_manifest(tmp_path):
    state = trained(toy_state(), 3)
    folder = save_checkpoint(tmp_path, state, {"run.json": '{"preset": "Ω"}'.encode()})
    assert folder.name == "step-00000003"
    assert (folder / "run.json").read_text(encoding="utf-8") == '{"preset": "Ω"}'
    manifest = verify(folder)
    assert manifest["step"] == 3 and manifest["ranks"] == 1
    assert set(manifest["files"]) == {path.name for path in folder.iterdir()} - {MANIFEST}
    again = load_checkpoint(tmp_path, toy_state(seed=3))
    assert (again.step, again.tokens, again.seconds) == (3, state.tokens, state.seconds)


def test_keeps_the_newest_ones(tmp_path):
    state = toy_state()
    for step in (1, 2, 3, 4):
        save_checkpoint(tmp_path, trained(state, step), keep=Keep(2))
    assert [path.name[-1] for path in checkpoints(tmp_path)] == ["3", "4"]
    assert newest_checkpoint(tmp_path).name.endswith("4")
    before = newest_checkpoint(tmp_path).stat().st_mtime_ns
    save_checkpoint(tmp_path, state)  # the same step again: nothing is written
    assert newest_checkpoint(tmp_path).stat().st_mtime_ns == before


# --- what a crash leaves ---


def test_one_that_was_being_removed_is_never_seen_and_is_cleared_away(tmp_path, monkeypatch):
    state = toy_state()
    for step in (1, 2):
        save_checkpoint(tmp_path, trained(state, step), keep=Keep(2))

    def killed(folder):
        (folder / "model.safetensors").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("minitrain.reliability.checkpoint.folder.shutil.rmtree", killed)
        save_checkpoint(tmp_path, trained(state, 3), keep=Keep(2))
    assert [verify(folder)["step"] for folder in checkpoints(tmp_path)] == [2, 3]
    save_checkpoint(tmp_path, trained(state, 4), keep=Keep(2))
    assert sorted(path.name[-1] for path in tmp_path.iterdir()) == ["3", "4"]


def test_kills_before_the_old_ones_are_removed_do_not_add_up(tmp_path, monkeypatch):
    def killed(folder):
        if folder == tmp_path:  # when the new one has its name
            raise KeyboardInterrupt

    monkeypatch.setattr("minitrain.reliability.checkpoint.folder.flush_folder", killed)
    state = toy_state()
    for step in range(1, 7):
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, trained(state, step), keep=Keep(2))
        assert verify(newest_checkpoint(tmp_path))["step"] == step
        assert len(checkpoints(tmp_path)) <= 3


ROOT = Path(__file__).parents[4]
FEW = [("sync", 4), ("background", 4), ("ranks", 2)]
MANY = [("sync", 70), ("background", 70), ("ranks", 60)]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind, kills", [*FEW, *(pytest.param(*case, marks=pytest.mark.full) for case in MANY)]
)
def test_killed_at_random_instants(tmp_path, kind, kills):
    """A state that loads, no completed save lost, the same losses to the bit."""
    script = [sys.executable, str(Path(__file__).with_name("kill_drill.py"))]
    done = subprocess.run(
        [*script, str(tmp_path), kind, str(kills), "1"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["other_losses"] == 0 and found["repeated"]
    assert found["newest"] > 0 and found["steps"] > 3
    # of one save in the background a run is at most a save ahead
    assert found["most_lost"] <= (3 if kind == "sync" else 6)


# --- damage ---


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "rank-000.json", "progress.json"]
)
@pytest.mark.parametrize("damage", ["flipped bit", "cut", "gone"])
def test_damage_is_found_and_leaves_the_state_alone(tmp_path, name, damage):
    folder = save_checkpoint(tmp_path, trained(toy_state(), 2))
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content if damage == "flipped bit" else content[:-1])
    state = toy_state(seed=5)
    before = bits(state)
    with pytest.raises(InputError, match=r"remove .*step-00000002 and resume from an older step"):
        load_checkpoint(tmp_path, state)
    assert bits(state) == before


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 3}', "no json"])
def test_a_broken_manifest_is_named(tmp_path, text):
    folder = save_checkpoint(tmp_path, toy_state())
    (folder / MANIFEST).write_text(text)
    with pytest.raises(InputError, match="cannot be read"):
        load_checkpoint(tmp_path, toy_state())


@pytest.mark.parametrize("other", [{"width": 6}, {"tied": True}])
def test_another_shape_is_named_and_nothing_is_changed(tmp_path, other):
    save_checkpoint(tmp_path, trained(toy_state(), 2))
    state = toy_state(seed=5, **other)
    before = bits(state)
    with pytest.raises(InputError, match=r"another shape .*(embed|head)"):
        load_checkpoint(tmp_path, state)
    assert bits(state) == before
    save_checkpoint(tmp_path / "tied", toy_state(tied=True))
    with pytest.raises(InputError, match=r"another shape .* is only here"):
        load_checkpoint(tmp_path / "tied", toy_state())


# --- ranks ---


def save_parts_as_if_whole(group, run):
    said = []
    zero, optimizer = zero_toys.sharded(group, 1)
    fsdp2 = zero_toys.toy()
    fully_shard(fsdp2, mesh=DeviceMesh.from_group(group.process_group, "cpu"))
    for model in (zero, fsdp2):
        with pytest.raises(InputError) as error:
            save_checkpoint(run, TrainState(model, optimizer, ToyLoader()))
        said.append(str(error.value))
    return said


def test_parts_are_not_taken_for_the_whole(tmp_path):
    for zero, fsdp2 in launch(save_parts_as_if_whole, tmp_path, ranks=2):
        assert "give layout=zero_layout(zero)" in zero and "are DTensors" in fsdp2


def save_on_ranks(group, run, steps):
    state = toy_state(seed=0, dropout=0.3)
    state.loader.seed = group.rank
    ranks = CheckpointRanks(group.rank, group.size, group.barrier)
    average = partial(all_reduce_gradients, group, state.model)
    peers = Peers(group.size, group.all_reduce, average)
    torch.manual_seed(group.rank)  # each rank drops other values
    config = TrainConfig(steps=8, **CONFIG)
    if steps is None:
        load_checkpoint(run, state, ranks)
    train(
        state.model, state.loader, config, peers=peers, state=state,
        stop=lambda: state.step == steps,
    )  # fmt: skip
    if steps:
        save_checkpoint(run, state, ranks=ranks)
    return bits(state)


def test_each_rank_gets_its_own_random_state_and_place_back(tmp_path):
    expected = list(launch(save_on_ranks, tmp_path / "whole", 8, ranks=2))
    launch(save_on_ranks, tmp_path / "half", 3, ranks=2)
    assert list(launch(save_on_ranks, tmp_path / "half", None, ranks=2)) == expected
    assert expected[0]["rng"] != expected[1]["rng"]
    with pytest.raises(InputError, match="saved by 2 ranks and 1 would resume"):
        load_checkpoint(tmp_path / "half", toy_state())


def test_numpys_and_pythons_generators_go_on_too(tmp_path):
    """Each with the second of a pair of normals kept, which is part of its state."""
    state = toy_state()
    np.random.randn(), random.gauss(0, 1)
    save_checkpoint(tmp_path, state)
    expected = np.random.randn(3).tolist(), random.gauss(0, 1), random.random()
    load_checkpoint(tmp_path, state)
    assert (np.random.randn(3).tolist(), random.gauss(0, 1), random.random()) == expected


def test_nothing_there_is_named(tmp_path):
    with pytest.raises(InputError, match="no folder"):
        load_checkpoint(tmp_path / "nowhere", toy_state())
    with pytest.raises(InputError, match="holds no checkpoint"):
        load_checkpoint(tmp_path, toy_state())
