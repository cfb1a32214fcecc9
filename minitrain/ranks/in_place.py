"""`launch` under torchrun or srun: this process is a rank already, so the function runs in place.

Every process runs the whole script; at a launch they meet, the first `ranks` of them run the
function, and each gets the results of all. So a lab's cells are a cluster's script, unchanged.
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

from minitrain.errors import InputError
from minitrain.generators import seed_generators
from minitrain.network.logical_clock import LogicalClock
from minitrain.ranks.flight_recorder import FlightRecorder
from minitrain.ranks.group import Group
from minitrain.ranks.payload import dumps
from minitrain.ranks.process_group import meet
from minitrain.ranks.sigterm import obeying_sigterm

if TYPE_CHECKING:
    from minitrain.network.fabric import Fabric

REMEDY = "start with torchrun, or unset RANK to launch ranks from here"


def rank_and_world_size() -> tuple[int, int] | None:
    """RANK and WORLD_SIZE as torchrun or srun set them; None where this process is no rank."""
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
    """On every rank, each rank's answer (its value, its trace, its clock), and the seconds."""
    recorder, (rank, size) = FlightRecorder.alone(), rank_and_world_size()
    if ranks > size:
        raise InputError(
            f"{ranks} ranks are asked for, but {size} were started: "
            f"use ranks={size}, or torchrun --nproc-per-node {ranks}"
        )
    is_main = threading.current_thread() is threading.main_thread()  # it alone may take signals
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
    """This rank's answer; None where it is not one of the group."""
    if group is None:
        return None
    if fabric is not None:
        group.use(LogicalClock(fabric, group.ranks[group.rank]))
    return fn(group, *args), group.trace.as_dict(), group.now()


def gather_objects(group: Group, mine: Any) -> list[Any]:
    """Every rank's object, on every rank; as operations of the group, whose waits are recorded."""
    data = torch.frombuffer(bytearray(dumps(mine)), dtype=torch.uint8).to(group.device)
    lengths = torch.empty(group.size, dtype=torch.int64, device=group.device)
    group.all_gather(lengths, torch.tensor([len(data)], device=group.device))
    padded = torch.nn.functional.pad(data, (0, int(lengths.max()) - len(data)))
    rows = group.all_gather(padded.new_empty(group.size * len(padded)), padded)
    rows = rows.view(group.size, -1).cpu()  # (N, longest), uint8
    return [pickle.loads(bytes(row[:n].numpy())) for row, n in zip(rows, lengths.tolist())]


def join(recorder: FlightRecorder | None = None) -> Group:
    """All processes that torchrun started; the first call meets them, by its environment."""
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
