"""torch's process groups: how ranks meet, how some of them form a group, and how long they wait.

The one place for what `torch.distributed` keeps private. Its `new_group` wants every rank of the
world to call, in the same order; with `use_local_synchronization` it names the group by how many
each member has made before, and so hangs where groups overlap: rank 1 in [0, 1] and [1, 2]. Here
the members alone call, and name it alike.
"""

from __future__ import annotations

import atexit
import gc
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

PATIENCE_SECONDS = 600.0  # that an operation waits for the other ranks: NCCL's own default
LEAVING_SECONDS = 2.0  # for torch's threads to end: one that waits for a lost rank does not
holders: WeakSet[Any] = WeakSet()  # the `Group`s of this process, which keep torch's alive


def gather_flat(process_group: Any, output: Tensor, input: Tensor) -> Any:
    """input (n,) of every rank to output (N·n,); torch's handle of the work."""
    return process_group._allgather_base(output, input)


def reduce_scatter_flat(process_group: Any, output: Tensor, input: Tensor, options: Any) -> Any:
    """This rank's output (n,) of the sum of all inputs (N·n,); torch's handle of the work."""
    return process_group._reduce_scatter_base(output, input, options)


def meet(
    on_gpus: bool, store: dist.Store | None = None, rank: int = -1, ranks: int = -1
) -> dist.ProcessGroup:
    """All ranks, when they have come; with no store, by the environment that torchrun sets."""
    if not dist.is_initialized():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpus else "gloo",
            store=store,
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=PATIENCE_SECONDS),
        )
    return c10d._get_default_group()


@atexit.register
def leave() -> None:
    """Ends gloo's threads while Python still runs; a `Group` is of no use afterwards.

    They let go of a message's tensors after the wait for it has returned, and a thread that does so
    when Python has ended aborts the process: "terminate called without an active exception".
    """
    if dist.is_initialized() or holders:  # a group in place is gone, torch's is not
        ending = threading.Thread(target=_let_go, daemon=True)
        ending.start()
        ending.join(LEAVING_SECONDS)


def _let_go() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    for holder in holders:
        holder.process_group = None
    gc.collect()  # a sharded model refers to itself by its hooks


def new_process_group(parent: Any, members: Sequence[int], name: str) -> Any:
    """torch's group of the world's ranks `members`, in that order, known to all of torch.

    Where `parent` is none of torch's but a carrier's (process.py), it is the carrier's.
    """
    if not isinstance(parent, dist.ProcessGroup):
        return parent.subgroup(members, name)
    everyone = c10d._get_default_group()
    backend, store = c10d._world.pg_map[everyone]
    place = list(members).index(everyone.rank())
    process_group, _ = c10d._new_process_group_helper(
        len(members),
        place,
        list(members),
        dist.Backend(backend),
        store,
        group_name=name,
        timeout=timedelta(seconds=PATIENCE_SECONDS),
    )
    c10d._world.pg_group_ranks[process_group] = {rank: i for i, rank in enumerate(members)}
    return process_group
