"""Restarts a function on fresh ranks when one has died, until it ends: torchrun in a notebook.

    launch 0 | 4 ranks ✗ rank 2 killed | launch 1 | 4 ranks, from the newest checkpoint … |

The function itself finds its checkpoint, as it must under `torchrun --max-restarts 3` (there set
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: else a new rank may read a dead one's address, and a restart
is spent on it; torch 2.13). A user's mistake (InputError) is not tried again. Lab: e12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minitrain.errors import InputError
from minitrain.ranks.errors import RankDied, RankError
from minitrain.ranks.launch import Results, launch
from minitrain.reliability.elastic import most_ranks
from minitrain.reliability.events import EventLog


def launch_until_done(
    fn: Callable,
    *args: Any,
    ranks: int,
    log: EventLog,
    restarts: int = 3,
    shrink_to: int | None = None,
    timeout: float = 60.0,
) -> Results:
    """`launch(fn, *args)`, up to `restarts` times more. Each failure is in the log.

    shrink_to: rows of a batch; then ranks that died are gone for good, and as many of the others go
    on as can share a batch of so many rows.
    """
    for attempt in range(restarts + 1):
        try:
            return launch(fn, *args, ranks=ranks, timeout=timeout)
        except InputError:
            raise
        except RankError as error:
            lost = [report.rank for report in error.reports if report.state == "died"]
            for rank in lost or [-1]:
                log.of(rank).write("failed", attempt=attempt, said=error.headline)
            if attempt == restarts:
                raise
            if shrink_to is not None and isinstance(error, RankDied):
                ranks = most_ranks(shrink_to, ranks - max(1, len(lost)))
            log.write("restarted", attempt=attempt + 1, ranks=ranks)
    raise AssertionError("the last attempt returns or raises")
