"""A disk that is full, a folder that cannot be written: said in a sentence, and the training goes on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from minitrain.errors import InputError
from minitrain.monitoring.json_lines import JsonLines
from minitrain.ranks.launch import launch
from minitrain.reliability.checkpoint import folder
from minitrain.reliability.checkpoint.background import BackgroundSaver
from minitrain.reliability.checkpoint.contents import CheckpointRanks
from minitrain.reliability.checkpoint.folder import (
    NEWEST_TWO,
    NotSaved,
    checkpoints,
    commit,
    step_of,
    vote,
)
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.reliability.events import EventLog

from ...training.toys import toy_state
from .test_save_and_load import bits, trained

resource = pytest.importorskip("resource", reason="Windows has no limit on a file's size")


class Room:
    """Files may have this many bytes, as a disk that runs full within one."""

    def __init__(self, size: int):
        self.size = size

    def __enter__(self):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.before[1]))

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.mark.parametrize("in_background", [False, True])
def test_a_file_that_does_not_fit(tmp_path, in_background):
    state = trained(toy_state(), 1)
    saver = BackgroundSaver(tmp_path, state.optimizer)
    save_checkpoint(tmp_path, state)
    first = bits(state)
    trained(state, 2)
    with Room(1000):
        with pytest.raises(NotSaved, match=r"step 2 was not saved .*File too large.* is step 1"):
            if in_background:
                saver.save(state)
                saver.wait()
            else:
                save_checkpoint(tmp_path, state)
        assert list(map(step_of, checkpoints(tmp_path))) == [1] and not list(
            tmp_path.glob(".step*")
        )
        assert bits(load_checkpoint(tmp_path, toy_state(seed=3))) == first
    save_checkpoint(tmp_path, trained(state, 3))  # there is room again
    assert list(map(step_of, checkpoints(tmp_path))) == [1, 3]


@pytest.mark.parametrize("size", [1000, 0])
def test_one_rank_without_room_and_all_know(tmp_path, size):
    """With no room even for its vote, size 0, the folder's end says it."""
    found = launch(save_with_little_room, tmp_path, size, ranks=3)
    assert all("step 2 was not saved" in said and "the newest is step 1" in said for said in found)
    assert "File too large" in found[1]
    assert list(map(step_of, checkpoints(tmp_path))) == [1, 3]


def save_with_little_room(group, run, size):
    state = toy_state()
    ranks = CheckpointRanks(group.rank, group.size, group.barrier)
    save_checkpoint(run, trained(state, 1), ranks=ranks)
    said = ""
    trained(state, 2)
    with Room(size if group.rank == 1 else 2**40):
        try:
            save_checkpoint(run, state, ranks=ranks)
        except NotSaved as error:
            said = str(error)
    save_checkpoint(run, trained(state, 3), ranks=ranks)
    return said


def test_the_logs_wait_for_room_or_say_it_elsewhere(tmp_path, capsys):
    metrics = JsonLines(tmp_path / "metrics.jsonl")
    sample = {"time": 1.5, "step": 1, "loss": 2.0}
    metrics(sample)
    log = EventLog(tmp_path / "events.jsonl")
    log.write("saved", 1, text="x" * metrics.path.stat().st_size)
    with Room(metrics.path.stat().st_size + 10):
        metrics({**sample, "step": 2})
        metrics({**sample, "step": 3})
        log.write("not saved", 3)
    assert len(metrics.path.read_text().splitlines()) == 1, "and no half line"
    metrics({**sample, "step": 4})
    metrics.close()
    lines = [json.loads(line) for line in metrics.path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [event["event"] for event in log.read()] == ["saved"]
    said = capsys.readouterr().err
    assert '"event": "not saved"' in said
    assert said.count("its lines wait for room") == 1


def save_where_nobody_may(group, run):
    state = trained(toy_state(), 1)
    ranks = CheckpointRanks(group.rank, group.size, group.barrier)
    with pytest.raises(NotSaved) as error:
        save_checkpoint(run, state, ranks=ranks)
    saver = BackgroundSaver(run, state.optimizer, ranks)
    saver.save(state)
    trained(state, 2)  # goes on
    with pytest.raises(NotSaved):
        saver.wait()
    return str(error.value)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no folder that nobody may write to")
def test_a_folder_that_nobody_may_write_to():
    found = launch(save_where_nobody_may, Path("/proc/run"), ranks=2)
    assert all(
        "there is none yet: make room there, or the right to write" in said for said in found
    )
    assert os.strerror(2) in found[0]


def test_a_rank_that_never_votes_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "PATIENCE_SECONDS", 0.05)
    folder.begin(tmp_path, 4)
    vote(tmp_path, 4, 0, {})
    with pytest.raises(NotSaved, match=r"rank 1, 2 has not written its part within 0\.05 s"):
        commit(tmp_path, 4, 3, NEWEST_TWO)
    assert not list(tmp_path.iterdir())
    folder.begin(tmp_path, 5)
    vote(tmp_path, 5, 1000, {})  # a number of four digits
    assert commit(tmp_path, 5, 1, NEWEST_TWO).is_dir()


@pytest.mark.parametrize("bad", [0, 1])
def test_one_rank_whose_state_is_refused_and_none_waits_for_it(tmp_path, bad):
    assert launch(save_one_refused, tmp_path, bad, ranks=2, timeout=60)[bad] == "InputError"
    assert list(map(step_of, checkpoints(tmp_path))) == [2]


def save_one_refused(group, run, bad):
    state, said = trained(toy_state(), 1), ""
    ranks = CheckpointRanks(group.rank, group.size, group.barrier)
    try:
        save_checkpoint(run, state, {"../x": b""} if group.rank == bad else None, ranks)
    except InputError as error:
        said = type(error).__name__
    group.barrier()
    save_checkpoint(run, trained(state, 2), ranks=ranks)
    return said
