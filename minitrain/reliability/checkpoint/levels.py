"""Several homes for a run's state: where to go on from after a failure, the newest that is left.

    level              survives                      costs            how often
    neighbour memory   a process, a node             network          every few steps
    disk               a whole job                   disk             minutes
    object store       the cluster                   wide network     hours

What fails often is repaired by what is saved often. How often each: planning/goodput. Paper: SCR
(Moody et al., SC 2010). Lab: e12.
"""

from __future__ import annotations

from pathlib import Path

from minitrain.reliability.checkpoint.contents import ALONE, CheckpointRanks
from minitrain.reliability.checkpoint.folder import checkpoints, newest_whole, step_of
from minitrain.reliability.checkpoint.neighbour import NeighbourMemory
from minitrain.reliability.checkpoint.remote import download, remote_steps


def newest_of_levels(
    run: Path,
    memory: NeighbourMemory | None = None,
    url: str | None = None,
    ranks: CheckpointRanks = ALONE,
) -> Path | None:
    """The newest step of any level, as a whole checkpoint in the run's folder; None: begin anew.

    All ranks call it. One that is damaged on the disk is put aside. Where two levels have the
    same step, the nearer one's is taken.
    """
    if ranks.rank == 0:
        newest_whole(run)  # puts aside what is damaged
    ranks.barrier()
    if memory is not None:
        memory.recover(run)
    if url is not None and ranks.rank == 0:
        here, there = checkpoints(run), remote_steps(url)
        if there and (not here or there[-1] > step_of(here[-1])):
            download(url, run, there[-1])
    ranks.barrier()
    found = checkpoints(run)
    return found[-1] if found else None
