"""The same launch under torchrun: each process is a rank, and has the results of all."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from minitrain.errors import InputError
from minitrain.ranks import group_from_torch
from minitrain.ranks.in_place import rank_and_world_size
from minitrain.ranks.launch import launch

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def run_ranks(run_script):
    """`run_ranks(text)` starts `text` as two ranks of torchrun."""

    def run(text, **environment):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        world |= environment
        return [run_script(text, RANK=rank, LOCAL_RANK=rank, **world) for rank in "01"]

    return run


def test_under_torchrun_it_runs_in_place(run_ranks):
    scripts = run_ranks(
        """
        import torch
        from minitrain.ranks.launch import InputError, launch
        def ranks(group):
            total = group.all_reduce(torch.tensor([group.rank + 1.0]))
            return group.rank, total.item()
        results, first = launch(ranks, ranks=2), launch(ranks, ranks=1)
        print(list(results), [trace.count() for trace in results.traces], list(first))
        print(launch(ranks, ranks=2, fabric="ethernet-25g").emulated_seconds > 0)
        try:
            launch(ranks, ranks=3)
        except InputError as error:
            print(error)
        """
    )
    for script in scripts:
        lines = script.finish().splitlines()
        assert "[(0, 3.0), (1, 3.0)] [1, 1] [(0, 1.0)]" in lines
        assert "True" in lines
        assert "use ranks=2, or torchrun --nproc-per-node 3" in lines[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads in /proc")
def test_no_thread_of_gloos_outlives_python(run_ranks):
    """The group of a launch is gone with it, torch's is not: 3 of 8 busy runs aborted at the end."""
    scripts = run_ranks(
        """
        import atexit, pathlib

        def threads():
            tasks = pathlib.Path("/proc/self/task").glob("*/comm")
            return [file.read_text().strip() for file in tasks]

        atexit.register(lambda: print("gloo" in str(threads()), flush=True))
        import torch
        from minitrain.ranks.launch import launch
        launch(lambda group: group.all_reduce(torch.ones(4)), ranks=2)
        print("gloo" in str(threads()), flush=True)
        """
    )
    for script in scripts:
        assert script.finish().splitlines() == ["True", "False"]


# ---- a rank that waits for the others ----

ONE_SLEEPS = """
import datetime, signal, sys, threading, time
import torch
from torch.distributed import distributed_c10d as c10d
from minitrain.ranks import sigterm
from minitrain.ranks.flight_recorder import WAITING
from minitrain.ranks.launch import launch

sigterm.GRACE_SECONDS = 0.5
if {handles}:
    signal.signal(signal.SIGTERM, lambda number, frame: print("asked to save", flush=True))

def tell_when_it_waits(recorder):
    while recorder.status(recorder.rank).state != WAITING:
        time.sleep(0.02)
    print("waits", flush=True)

def ranks(group):
    c10d._set_pg_timeout(datetime.timedelta(seconds={patience}), group.process_group)
    if group.rank == 1:
        time.sleep({sleep})
    else:
        threading.Thread(target=tell_when_it_waits, args=(group.recorder,)).start()
    group.all_reduce(torch.ones(4))
    return group.rank

print(list(launch(ranks, ranks=2)), flush=True)
"""
LINE = 1 + ONE_SLEEPS.splitlines().index("    group.all_reduce(torch.ones(4))")


def asked_to_end(script) -> tuple[str, float]:
    """The output of a waiting rank after SIGTERM, and the seconds until it is gone."""
    while (line := script.process.stdout.readline()).strip() != "waits":
        assert line, "the script ended before it waited"
    asked = time.monotonic()
    script.process.send_signal(signal.SIGTERM)
    return script.finish(30), time.monotonic() - asked


@pytest.mark.parametrize("handles", [False, True], ids=["no handler", "a handler of its own"])
def test_sigterm_ends_a_rank_that_waits_and_says_in_what(run_ranks, handles):
    waiting, sleeping = run_ranks(ONE_SLEEPS.format(patience=600, handles=handles, sleep=100))
    output, seconds = asked_to_end(waiting)
    sleeping.process.kill()
    sleeping.finish()
    assert waiting.process.returncode == 128 + signal.SIGTERM and seconds < 20
    assert "rank 0: ended by SIGTERM while it waited in all_reduce(sum) of float32 [4]" in output
    assert f"script.py, line {LINE}: group.all_reduce(torch.ones(4))" in output


def test_a_handler_of_ones_own_may_finish_the_step(run_ranks):
    """The wait ends within the grace: the rank goes on, and what the handler asked for is done."""
    waiting, other = run_ranks(
        ONE_SLEEPS.format(patience=600, handles=True, sleep=3).replace("= 0.5", "= 30")
    )
    output, _ = asked_to_end(waiting)
    assert output.splitlines() == ["asked to save", "[0, 1]"] and waiting.process.returncode == 0
    assert "[0, 1]" in other.finish()


# ---- the environment ----


@pytest.mark.parametrize(
    "environment, said",
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"RANK": "0", "WORLD_SIZE": "abc"}, "WORLD_SIZE is abc"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is x"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2, WORLD_SIZE is 2"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK is not set"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is -1"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE is 0"),
    ],
)
def test_half_an_environment_is_one_sentence(monkeypatch, environment, said):
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(InputError, match=f"{said}.*start with torchrun, or unset RANK"):
        rank_and_world_size()


def test_no_address_to_meet_at_is_one_sentence(monkeypatch):
    for name, text in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(InputError, match="MASTER_ADDR expected, but not set; start with torchrun"):
        launch(print, ranks=2)


# ---- groups that torch has made ----


def made(group):
    """Groups of all ranks, of two, and of a column of a mesh; random numbers stay as they were."""
    before = torch.get_rng_state()
    everyone = group_from_torch()
    pair = dist.new_group([1, 3])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with pytest.raises(InputError, match=r"mesh\['dp'\]"):
        group_from_torch(mesh)
    for wrong in ("gloo", 2):
        with pytest.raises(InputError, match="give a process group"):
            group_from_torch(wrong)
    groups = [everyone, group_from_torch(mesh["dp"])]
    if group.rank in (1, 3):
        groups.append(group_from_torch(pair))
    else:
        with pytest.raises(InputError, match="not in the process group"):
            group_from_torch(pair)
    sums = [g.all_reduce(torch.tensor(1 + group.rank)).item() for g in groups]
    assert torch.equal(before, torch.get_rng_state())
    halves = everyone.split(group.rank // 2)
    return [(g.rank, g.ranks) for g in groups], sums, halves.ranks


def test_a_group_of_what_torch_has_initialised():
    for rank, (places, sums, half) in enumerate(launch(made, ranks=4)):
        column = (rank % 2, rank % 2 + 2)
        assert places[:2] == [(rank, (0, 1, 2, 3)), (rank // 2, column)]
        assert sums[:2] == [10, sum(column) + 2]
        if rank in (1, 3):
            assert places[2] == (rank // 2, (1, 3)) and sums[2] == 6
        assert half == ((0, 1) if rank < 2 else (2, 3))


def test_without_torch_distributed_it_says_so():
    with pytest.raises(InputError, match="init_process_group"):
        group_from_torch()


ENDING = """
import atexit, pathlib, sys

def threads():
    return sorted(file.read_text().strip() for file in pathlib.Path("/proc/self/task").glob("*/comm"))

atexit.register(lambda: pathlib.Path(sys.argv[1] + str(group.rank)).write_text(str(threads())))

import torch
import torch.distributed as dist
from minitrain.parallel.zero.stage_3 import Zero3
from minitrain.ranks import group_from_torch

dist.init_process_group("gloo")
group = group_from_torch()
zero = Zero3(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)), group.split(0))
zero(torch.ones(2, 8)).sum().backward()
assert "pt_gloo_runloop" in threads()
if sys.argv[2] == "destroyed":
    dist.destroy_process_group()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads in /proc")
@pytest.mark.parametrize("end", [pytest.param("destroyed", marks=pytest.mark.full), "left"])
def test_no_thread_of_a_script_of_ones_own_outlives_python(tmp_path, end):
    """One that lets go of a tensor then aborts the process: 7 of 40 busy runs ended so."""
    script = tmp_path / "script.py"
    script.write_text(ENDING)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*command, str(script), f"{tmp_path}/rank-", end], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    for rank in (0, 1):
        assert "gloo" not in (tmp_path / f"rank-{rank}").read_text()
