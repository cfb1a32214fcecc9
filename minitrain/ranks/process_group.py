"""A process group of some ranks, which its members alone have to make.

`torch.distributed.new_group` wants every rank of the world to call, in the same order; with
`use_local_synchronization` it names the group by how many each member has made before, and so
hangs where groups overlap: rank 1 in [0, 1] and [1, 2]. Here the caller names it, alike on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

TIMEOUT = timedelta(hours=24)  # the launching process looks much earlier


def new_process_group(members: Sequence[int], name: str) -> dist.ProcessGroup:
    """torch's group of the world's ranks `members`, in that order, known to all of torch."""
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
        timeout=TIMEOUT,
    )
    c10d._world.pg_group_ranks[process_group] = {rank: i for i, rank in enumerate(members)}
    return process_group
