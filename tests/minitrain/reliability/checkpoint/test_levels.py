"""A neighbour's memory and an object store give back what a node, or all of them, have lost."""

from __future__ import annotations

import shutil

import fsspec
import pytest
import torch

from minitrain.errors import InputError
from minitrain.parallel.zero.state import zero_layout
from minitrain.ranks.launch import launch
from minitrain.reliability.checkpoint.contents import CheckpointRanks
from minitrain.reliability.checkpoint.folder import Keep, checkpoints, step_of
from minitrain.reliability.checkpoint.levels import download, newest_of_levels, remote_steps, upload
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.neighbour import NeighbourMemory
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.training.state import TrainState

from ...parallel.zero import zero_toys
from ...training.toys import ToyLoader, toy_state
from .test_save_and_load import bits, trained


def node(shelves, rank):
    return shelves / f"node-{rank}"


def save_in_memory(group, shelves):
    zero, optimizer = zero_toys.sharded(group, 3)
    state = TrainState(zero, optimizer, ToyLoader())
    memory = NeighbourMemory(group, node(shelves, group.rank))
    for step in (1, 2, 3):
        zero_toys.train(group, zero, optimizer, 1, first=step - 1)
        state.step = step
        memory.save(state, layout=zero_layout(zero))
    return zero_toys.train(group, zero, optimizer, 2, first=3)["weights"]


def newest_found(group, shelves, run):
    memory = NeighbourMemory(group, node(shelves, group.rank))
    return newest_of_levels(run, memory, ranks=ranks_of(group))


def ranks_of(group):
    return CheckpointRanks(group.rank, group.size, group.barrier, may_change=True)


def recover(group, shelves, run):
    found, ranks = newest_found(group, shelves, run), ranks_of(group)
    if found is None:
        return None
    zero, optimizer = zero_toys.sharded(group, 3)
    state = TrainState(zero, optimizer, ToyLoader())
    load_checkpoint(found, state, ranks, zero_layout(zero))
    first = state.step
    return first, zero_toys.train(group, zero, optimizer, 5 - first, first=first)["weights"]


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """The shelves of four nodes after step 3, and the weights after step 5."""
    shelves = tmp_path_factory.mktemp("four")
    return shelves, launch(save_in_memory, shelves, ranks=4)[0]


@pytest.mark.parametrize("lost", [(1,), (0, 2), (1, 2), "part of 2"], ids=str)
def test_a_lost_node_or_part_is_given_back_and_two_neighbours_are_not(tmp_path, four, lost):
    saved, want = four
    shelves = shutil.copytree(saved, tmp_path / "shelves")
    assert len(list(node(shelves, 0).iterdir())) == 4, "two steps of two ranks"
    if lost == "part of 2":
        part = node(shelves, 2) / "part-3-2-4" / "model-002.safetensors"
        part.write_bytes(part.read_bytes()[:-4] + b"????")
        lost = ()
    for rank in lost:
        shutil.rmtree(node(shelves, rank))
    found = launch(recover, shelves, tmp_path / "run", ranks=4)
    if lost == (1, 2):
        assert found == [None] * 4
        return
    for first, weights in found:
        assert first == 3 and all(torch.equal(weights[name], want[name]) for name in want)


def test_a_newer_step_on_disk_outlives_a_recovery_from_memory(tmp_path):
    run = tmp_path / "run"
    newest = save_checkpoint(run, trained(toy_state(), 4))  # memory has 2 and 3
    launch(save_in_memory, tmp_path, ranks=2)
    assert launch(newest_found, tmp_path, run, ranks=2) == [newest] * 2
    assert checkpoints(run) == [newest]


@pytest.fixture
def url():
    yield "memory://runs/a"
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("mounted", [False, True])
def test_up_to_a_store_and_down_again(tmp_path, url, mounted):
    url = f"file://{tmp_path}/far/away" if mounted else url
    state = toy_state(dropout=0.3)
    for step in (1, 2, 3):
        upload(save_checkpoint(tmp_path / "a", trained(state, step)), url, Keep(1, every=1))
    assert remote_steps(url) == [1, 2, 3]
    expected = bits(state)
    shutil.rmtree(tmp_path / "a")
    assert newest_of_levels(tmp_path / "a", url=url) == download(url, tmp_path / "a")
    assert bits(load_checkpoint(tmp_path / "a", toy_state(seed=2))) == expected
    upload(save_checkpoint(tmp_path / "a", trained(state, 4)), url, Keep(1))
    assert remote_steps(url) == [4]
    assert step_of(download(url, tmp_path / "b")) == 4
    with pytest.raises(InputError, match="has no checkpoint of step 2: it has 4"):
        download(url, tmp_path / "b", 2)


def test_half_an_upload_is_none_and_a_damaged_one_is_refused(tmp_path, url):
    store = fsspec.filesystem("memory")
    upload(save_checkpoint(tmp_path / "a", trained(toy_state(), 1)), url)
    store.pipe_file("/runs/a/step-00000002/model.safetensors", b"half")
    assert remote_steps(url) == [1]
    data = store.cat_file("/runs/a/step-00000001/model.safetensors")
    store.pipe_file("/runs/a/step-00000001/model.safetensors", data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(InputError, match=r"gave is damaged"):
        download(url, tmp_path / "b")
    assert not list((tmp_path / "b").iterdir())
    with pytest.raises(InputError, match="cannot be opened"):
        remote_steps("gopher://x")


def test_the_newest_level_wins_and_damage_is_passed_over(tmp_path, url):
    run, state = tmp_path / "a", toy_state()
    upload(save_checkpoint(run, trained(state, 1)), url)
    save_checkpoint(run, trained(state, 2))
    assert step_of(newest_of_levels(run, url=url)) == 2
    newest = checkpoints(run)[-1] / "progress.json"
    newest.write_text(newest.read_text() + " ")
    assert step_of(newest_of_levels(run, url=url)) == 1
    save_checkpoint(run, trained(load_checkpoint(run, toy_state(seed=3)), 2))
    assert step_of(newest_of_levels(run)) == 2, "the step is saved anew; the damaged one lies aside"
    assert newest_of_levels(tmp_path / "empty") is None


def test_a_group_has_a_neighbour():
    with pytest.raises(InputError, match="is the rank itself"):
        NeighbourMemory(type("Two", (), {"size": 2, "rank": 0})(), None, apart=2)
