"""`launch` under torchrun or srun: this process is a rank already, so the function runs in place.

Every process runs the whole script; at a launch they meet, the first `ranks` of them run the
function, and each gets the results of all. So a lab's cells are a cluster's script, unchanged.
"""

from __future__ import annotations

import atexit
import os
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from minitrain.errors import InputError
from minitrain.measure.traffic import Trace, WallClock
from minitrain.ranks.group import Group
from minitrain.ranks.payload import dumps
from minitrain.ranks.process import seed

if TYPE_CHECKING:
    from minitrain.network.fabric import Fabric


def is_launched_from_outside() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run(
    fn: Callable, args: tuple, ranks: int, timeout: float, fabric: Fabric | None
) -> tuple[list, list[Trace], float, float | None, str | None]:
    """What `Results` takes, on every rank: values, traces, seconds, logical seconds, fabric."""
    world = join(timeout)
    if ranks > world.size:
        raise InputError(
            f"{ranks} ranks are asked for, but {world.size} were started: "
            f"use ranks={world.size}, or torchrun --nproc-per-node {ranks}"
        )
    group = world if ranks == world.size else world.subgroup(range(ranks))
    begun, mine = time.perf_counter(), None
    if group is not None:
        if fabric is not None:
            group.use(fabric.clock(group.ranks[group.rank]))
        mine = (fn(group, *args), group.trace.as_dict(), group.now())
    answers: list[Any] = [None] * world.size
    dist.all_gather_object(answers, dumps(mine), group=world.process_group)
    values, traces, clocks = zip(*(pickle.loads(answer) for answer in answers[:ranks]))
    logical = max(clocks) if fabric is not None else None
    seconds = time.perf_counter() - begun
    name = fabric.name if fabric is not None else None
    return list(values), [Trace.from_dict(trace) for trace in traces], seconds, logical, name


def join(timeout: float) -> Group:
    """All processes that torchrun started; the first call meets them, by its environment."""
    local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    on_gpus = torch.cuda.device_count() >= max(local_ranks, local_rank + 1)
    device = torch.device("cuda", local_rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        atexit.register(dist.destroy_process_group)
    rank, size = dist.get_rank(), dist.get_world_size()
    seed(rank)
    process_group = dist.distributed_c10d._get_default_group()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout), process_group)
    return Group(process_group, range(size), rank, device, Trace(rank, clock=WallClock()))
