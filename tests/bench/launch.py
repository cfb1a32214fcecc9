"""`launch` against `torchrun` and `mp.spawn`: from the call to the results of 4 ranks.

All three run the same all-reduce. torchrun and spawn start an interpreter per rank and import torch
in each, at every call; `launch` forks ranks from a server that imported it once. Measured are the
second and later calls, as in a notebook.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from minitrain.bench.case import OURS, PEER, TORCH, Case
from minitrain.measure.clock import Comparison, compare
from minitrain.ranks.group import Group
from minitrain.ranks.launch import launch

REASON = "a machine on which processes start as fast as ours fork: look at the absolute times"

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(4)
dist.all_reduce(tensor)
assert tensor[0] == dist.get_world_size()
dist.destroy_process_group()
"""


def cases(repeats: int = 5, ranks: int = 4) -> list[Case]:
    peers: dict[str, Callable[[int], None]] = {"torchrun": with_torchrun, "mp.spawn": with_spawn}
    return [
        Case(
            f"launch {ranks} ranks",
            f"{peer_name} of {TORCH}",
            partial(_measured, peer, ranks, repeats),
            REASON,
        )
        for peer_name, peer in peers.items()
    ]


def _measured(peer: Callable[[int], None], ranks: int, repeats: int) -> Comparison:
    """Our warm-up call starts the server, the peer's fills the file cache."""
    return compare({OURS: lambda: with_launch(ranks), PEER: lambda: peer(ranks)}, repeats, warmup=1)


def with_launch(ranks: int) -> None:
    assert list(launch(_all_reduce, ranks=ranks)) == [ranks] * ranks, "the sum of ones is wrong"


def _all_reduce(group: Group) -> float:
    return group.all_reduce(torch.ones(4))[0].item()


def with_spawn(ranks: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_spawned, (ranks, Path(folder, "store").as_uri()), nprocs=ranks)


def _spawned(rank: int, ranks: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor[0] == ranks, "the sum of ones is wrong"
    dist.destroy_process_group()


def with_torchrun(ranks: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "all_reduce.py")
        script.write_text(SCRIPT)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*torchrun, f"--nproc-per-node={ranks}", str(script)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
