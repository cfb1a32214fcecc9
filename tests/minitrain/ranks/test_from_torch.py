from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from minitrain.errors import InputError
from minitrain.ranks import group_from_torch
from minitrain.ranks.launch import launch


def made(group):
    """Of all ranks, of two, and of a column of a mesh; the random numbers go on undisturbed."""
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
@pytest.mark.parametrize("end", ["destroyed", "left"])
def test_no_thread_of_gloos_outlives_python(tmp_path, end):
    """One that lets go of a tensor then aborts the process: 7 of 40 busy runs ended so."""
    script = tmp_path / "script.py"
    script.write_text(ENDING)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*command, str(script), f"{tmp_path}/rank-", end], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    for rank in (0, 1):
        assert "gloo" not in (tmp_path / f"rank-{rank}").read_text()
