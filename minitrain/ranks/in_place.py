"""Ranks started by others: `launch` under torchrun or srun, and torch's groups as `Group`s.

Under torchrun this process is a rank already, so the function of a launch runs in place: every
process runs the whole script, they synchronize at a launch, the first `ranks` of them run the
function, and each gets all results. So a lab's cells run unchanged as a cluster's script. A script
with its own process groups can pass one to any technique of this package:

    dist.init_process_group("gloo")                 or init_device_mesh("cpu", (8,))
    group = group_from_torch()                      or group_from_torch(mesh)
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from minitrain.errors import InputError
from minitrain.generators import seed_generators
from minitrain.network.logical_clock import LogicalClock
from minitrain.ranks.flight_recorder import FlightRecorder
from minitrain.ranks.group import Group, meet
from minitrain.ranks.payload import dumps
from minitrain.ranks.sigterm import obeying_sigterm

if TYPE_CHECKING:
    from minitrain.network.fabric import Fabric

REMEDY = "start with torchrun, or unset RANK to launch ranks from here"


def rank_and_world_size() -> tuple[int, int] | None:
    """RANK and WORLD_SIZE as set by torchrun or srun; None if this process is not a rank."""
    if "RANK" not in os.environ:
        return None
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    if not 0 <= rank < size:
        raise InputError(f"RANK is {rank}, WORLD_SIZE is {size}: no such rank; {REMEDY}")
    return rank, size


def _number(name: str, default: str = "") -> int:
    text = os.environ.get(name, default)
    try:
        return int(text)
    except ValueError:
        said = f"{name} is {text or 'not set'}"
        raise InputError(f"{said}: torchrun sets it to a whole number; {REMEDY}") from None


def run(
    fn: Callable, args: tuple, ranks: int, fabric: Fabric | None
) -> tuple[list[tuple[Any, dict, float]], float]:
    """Returns, on every rank, each rank's (value, trace, clock), and the seconds taken."""
    recorder, (rank, size) = FlightRecorder.alone(), rank_and_world_size()
    if ranks > size:
        raise InputError(
            f"{ranks} ranks are asked for, but {size} were started: "
            f"use ranks={size}, or torchrun --nproc-per-node {ranks}"
        )
    is_main = threading.current_thread() is threading.main_thread()  # only it may handle signals
    with obeying_sigterm(recorder, rank) if is_main else nullcontext():
        world = join(recorder)
        seed_generators(rank)
        begun = time.perf_counter()
        group = world if ranks == size else world.subgroup(range(ranks))
        answers = gather_objects(world, _call(fn, args, group, fabric))
    return answers[:ranks], time.perf_counter() - begun


def _call(
    fn: Callable, args: tuple, group: Group | None, fabric: Fabric | None
) -> tuple[Any, dict, float] | None:
    """This rank's (value, trace, clock); None if it is not in the group."""
    if group is None:
        return None
    if fabric is not None:
        group.use(LogicalClock(fabric, group.ranks[group.rank]))
    return fn(group, *args), group.trace.as_dict(), group.now()


def gather_objects(group: Group, mine: Any) -> list[Any]:
    """Every rank's object, on every rank; by operations of the group, whose waits are recorded."""
    data = torch.frombuffer(bytearray(dumps(mine)), dtype=torch.uint8).to(group.device)
    lengths = torch.empty(group.size, dtype=torch.int64, device=group.device)
    group.all_gather(lengths, torch.tensor([len(data)], device=group.device))
    padded = torch.nn.functional.pad(data, (0, int(lengths.max()) - len(data)))
    rows = group.all_gather(padded.new_empty(group.size * len(padded)), padded)
    rows = rows.view(group.size, -1).cpu()  # (N, longest), uint8
    return [pickle.loads(bytes(row[:n].numpy())) for row, n in zip(rows, lengths.tolist())]


def join(recorder: FlightRecorder | None = None) -> Group:
    """All processes that torchrun started; the first call joins them through its environment."""
    local_rank = _number("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))
    local_ranks = _number("LOCAL_WORLD_SIZE", "1")
    on_gpus = torch.cuda.device_count() >= max(local_ranks, local_rank + 1)
    device = torch.device("cuda", local_rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    try:
        everyone = meet(on_gpus)
    except ValueError as error:  # MASTER_ADDR or MASTER_PORT is missing
        raise InputError(f"{error}; {REMEDY}") from error
    return Group(everyone, range(everyone.size()), everyone.rank(), device, recorder=recorder)


def group_from_torch(source: dist.ProcessGroup | DeviceMesh | None = None) -> Group:
    """The group of a process group, of a mesh with one dimension, or by default of all ranks.

    It opens no connection, seeds nothing and sends nothing. Call it once per process group, on all
    of its ranks: whatever is made from the group takes its name.
    """
    if not dist.is_initialized():
        raise InputError(
            "torch.distributed is not initialised: call dist.init_process_group() first, or use "
            "minitrain.ranks.launch"
        )
    if isinstance(source, DeviceMesh):
        source = _process_group(source)
    elsewhere = source == dist.GroupMember.NON_GROUP_MEMBER  # new_group's result for non-members
    if not (source is None or elsewhere or isinstance(source, dist.ProcessGroup)):
        raise InputError(
            f"group_from_torch({source!r}): give a process group (dist.new_group([0, 1])), a mesh "
            "of one dimension, or nothing for all ranks"
        )
    process_group = source or dist.group.WORLD
    rank = dist.get_rank(process_group)
    if rank < 0:
        raise InputError("this rank is not in the process group: call it on the members alone")
    ranks = dist.get_process_group_ranks(process_group)
    return Group(process_group, ranks, rank, _device(process_group), name=process_group.group_name)


def _process_group(mesh: DeviceMesh) -> dist.ProcessGroup:
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names or tuple(range(mesh.ndim))
        raise InputError(
            f"a mesh of {mesh.ndim} dimensions {names} is not one group: choose a dimension, "
            f"mesh[{names[0]!r}]"
        )
    return mesh.get_group()


def _device(process_group: dist.ProcessGroup) -> torch.device:
    """The device of its tensors: this process's GPU for NCCL, else the CPU."""
    on_gpu = "nccl" in dist.get_backend_config(process_group)
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
