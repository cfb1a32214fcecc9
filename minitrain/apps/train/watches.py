"""Checks during training, each with its own option.

    --notice         the machine is about to be preempted: save, exit
    --hang-seconds   a rank hangs: all report where they are, and exit
    --audit          one rank's weights differ from the others': exit before they are saved

Each ends the run so that the same command, rerun by torchrun, a scheduler or a person, continues
from the newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch

from minitrain.apps.train.options import TrainOptions
from minitrain.errors import InputError
from minitrain.ranks.group import Group
from minitrain.reliability.corruption import fingerprint, odd_ranks
from minitrain.reliability.events import EventLog
from minitrain.reliability.hangs import hangs_watched
from minitrain.reliability.notice import LOOK_SECONDS, address_of, noticed_at, stop_on_notice
from minitrain.training.state import TrainState


@contextmanager
def watched(
    options: TrainOptions, group: Group | None, stop: Path, log: EventLog
) -> Iterator[None]:
    """Every rank checks for a notice, which concerns one machine, maybe with a single rank."""
    with ExitStack() as stack:
        if options.notice is not None:
            is_noticed = partial(noticed_at, address_of(options.notice))
            stack.enter_context(stop_on_notice(stop, is_noticed, log, LOOK_SECONDS))
        if options.hang_seconds is not None and group is not None:
            stack.enter_context(hangs_watched(group, log, options.hang_seconds))
        yield


def check_replicas(group: Group, state: TrainState, log: EventLog) -> None:
    """Collective. InputError on all ranks if one rank's weights or moments differ."""
    moments = (value for own in state.optimizer.state.values() for value in own.values())
    tensors = [*state.model.parameters(), *(v for v in moments if isinstance(v, torch.Tensor))]
    odd = odd_ranks(group, fingerprint(tensors))
    if not odd:
        return
    if group.rank in odd:
        log.write("corrupt", state.step, ranks=odd)
    names = " and ".join(f"rank {rank}" for rank in odd)
    whose = "the ranks' weights differ" if len(odd) == group.size else f"{names} has other weights"
    raise InputError(
        f"after step {state.step} {whose}, which are not saved: look at the machines, and give the "
        "same command again, which goes on from the checkpoint before"
    )
