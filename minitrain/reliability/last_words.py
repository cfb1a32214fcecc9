"""Ranks that ended without a word: of a kill -9 nobody but the others can tell.

    rank 0   … all_reduce ✗ its peer is gone ─▶ log: "cut off"
    rank 1   … kill -9                          nothing
    rank 2   … raises an error               ─▶ log: "failed", and what it said
    all ranks, started again                 ─▶ log: "silent", rank 1

A session begins with "began" or "resumed" and its number of ranks, which rank 0 writes. Who had no
time to speak is silent as well: a node that lost its power, a rank that a scheduler killed because
another had died. So look first at the one that died first: at a rank that is silent alone. Cost:
nothing, until a rank ends. Lab: e12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minitrain.ranks.errors import ConnectionLost
from minitrain.reliability.events import EventLog

BEGINNINGS = ("began", "resumed")
LAST_WORDS = ("cut off", "failed", "waits", "stuck")


@contextmanager
def last_words(log: EventLog, step: Callable[[], int]) -> Iterator[None]:
    """Within the block, what ends this rank is in the log: its own error, or a peer that is gone.

    step(): the one that is done.
    """
    try:
        yield
    except ConnectionLost:
        log.write("cut off", step())
        raise
    except BaseException as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        log.write("failed", step(), said=said)
        raise


def silent_ranks(log: EventLog) -> list[int]:
    """The ranks of the last session without a last word. None where nobody had one: the run ended
    well, or all of it was killed at once."""
    lines = log.read()
    begun = [place for place, line in enumerate(lines) if line["event"] in BEGINNINGS]
    if not begun:
        return []
    session = lines[begun[-1]]
    spoke = {line["rank"] for line in lines[begun[-1] :] if line["event"] in LAST_WORDS}
    return [rank for rank in range(session["ranks"]) if rank not in spoke] if spoke else []
