"""Restarts a function on fresh ranks when one has died, until it completes: torchrun in a notebook.

    launch 0 | 4 ranks ✗ rank 2 killed | launch 1 | 4 ranks, from the newest checkpoint … |

The function itself finds its checkpoint, as it must under `torchrun --max-restarts 3` (set
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 there: otherwise a new rank may read a dead one's address and
waste a restart; torch 2.13). A user's mistake (InputError) is not retried. Lab: e12.
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
    """`launch(fn, *args)`, with up to `restarts` restarts. Each failure is logged.

    shrink_to: rows of a batch; then dead ranks are not replaced, and the run continues with the
    most remaining ranks that can share a batch of that many rows.
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
