"""The processes of a launch: none is left, nor a file, nor a descriptor, whatever happens."""

from __future__ import annotations

import gc
import shutil
import signal
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from minitrain.ranks.errors import RankError
from minitrain.ranks.launch import launch

pytestmark = [pytest.mark.timeout(120), pytest.mark.alone]


# ---- nothing is left ----


def test_fifty_launches_leave_no_descriptor_no_file_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def some(group):
        return group.rank

    launch(some, ranks=2)
    gc.collect()
    me = psutil.Process()
    descriptors, processes = me.num_fds(), len(me.children(recursive=True))
    for _ in range(50):
        launch(some, ranks=2)
    with pytest.raises(RankError):
        launch(lambda group: 1 / 0, ranks=2)
    gc.collect()
    assert me.num_fds() <= descriptors
    assert len(me.children(recursive=True)) <= processes
    assert list(tmp_path.iterdir()) == []


SLEEPER = """
import os, signal, sys, time
import torch
from minitrain.ranks.launch import launch

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

def work(group):
    if group.rank == 0:
        group.recv(torch.ones(2), source=1)
    loader = torch.utils.data.DataLoader(range(10**6), num_workers=1)
    for _ in loader:
        open(sys.argv[1] + "/begun", "w").close()
        time.sleep(100)

try:
    launch(work, ranks=2)
except KeyboardInterrupt as error:
    print("seconds", time.monotonic() - float(open(sys.argv[1] + "/sent").read()))
    print(type(error).__name__, error, flush=True)
"""


def ours_in(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith("minitrain-")]


def until(path, seconds=60):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} did not appear in {seconds} s"
        time.sleep(0.05)


def test_an_interrupt_reports_and_leaves_nothing(tmp_path, run_script):
    script = run_script(SLEEPER)
    until(tmp_path / "begun")
    (tmp_path / "sent").write_text(str(time.monotonic()))
    script.process.send_signal(signal.SIGINT)
    output = script.finish(20)
    assert float(output.split("seconds ")[1].split()[0]) < 10
    assert "RanksInterrupted interrupted; no rank is left" in output
    assert "rank 0: waiting in recv from rank 1 of float32 [2], script.py, line 10" in output
    assert "rank 1: still at work, script.py, line 14: time.sleep(100)" in output
    assert script.left_after(30) == []
    assert ours_in(tmp_path / "temp") == []


def test_when_the_parent_is_killed_no_rank_is_left(tmp_path, run_script):
    script = run_script(SLEEPER)
    until(tmp_path / "begun")
    assert len(script.left()) > 2
    script.process.kill()
    script.process.wait(10)
    assert script.left_after(30) == []
    assert ours_in(tmp_path / "temp") == []


def test_a_script_needs_no_main_guard_and_may_fork(tmp_path, run_script):
    script = run_script(
        """
        import sys
        print("main runs once")
        import torch
        from minitrain.ranks.launch import launch
        def ranks(group):
            print("hello")
            return group.all_reduce(torch.ones(2)).tolist()
        print(launch(ranks, ranks=2), launch(ranks, ranks=2, start_method="fork"))
        """
    )
    output = script.finish()
    assert output.count("main runs once") == 1
    assert output.splitlines()[-1] == "[[2.0, 2.0], [2.0, 2.0]] [[2.0, 2.0], [2.0, 2.0]]"
    assert output.count("[rank 1] hello") == 2
    assert script.left_after(30) == []


def test_spawn_works_where_there_is_no_fork():
    assert launch(lambda group: group.rank, ranks=2, start_method="spawn") == [0, 1]


PACKAGE = Path(__file__).resolve().parents[3] / "minitrain"

EDITS = """
import sys
from pathlib import Path
from minitrain.measure import traffic
from minitrain.ranks.launch import launch

def see(group):
    from minitrain.measure import traffic
    return getattr(traffic, "EDITED", False), Path(traffic.__file__).parents[2] == Path(sys.argv[1])

print(launch(see, ranks=2))
with open(traffic.__file__, "a") as file:
    file.write("EDITED = True\\n")
print(launch(see, ranks=2))
"""


def test_an_edit_of_the_package_counts_at_the_next_launch(tmp_path, run_script):
    shutil.copytree(PACKAGE, tmp_path / "minitrain")
    output = run_script(EDITS, PYTHONPATH=str(tmp_path)).finish()
    assert output.splitlines() == ["[(False, True), (False, True)]", "[(True, True), (True, True)]"]
