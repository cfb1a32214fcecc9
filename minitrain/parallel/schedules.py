"""Pipeline schedules as pure data: for each rank, the list of operations it runs, in order.

Of p ranks and m microbatches, each rank holds v chunks of the model: chunk c of rank r is stage
c·p + r of v·p. `F` is a forward, `B` a backward; zero-bubble splits it into `B` (the input's
gradient, which the rank before waits for) and `W` (the weight's, which nobody waits for).

    GPipe        F0 F1 F2 F3 B0 B1 B2 B3    bubble (p-1)(F+B)      live m     Huang et al. 2019
    1F1B         F0 F1 B0 F2 B1 F3 B2 B3    bubble (p-1)(F+B)      live p-r   Narayanan et al. 2019
    interleaved  1F1B over v chunks a rank  bubble (p-1)(F+B)/v    live more  Narayanan et al. 2021
    zero-bubble  ZB-H1: W fills the bubble  bubble (p-1)(F+B-W)    live p     Qi et al. 2024

with F, B, W the seconds of one microbatch on one rank. Who runs a schedule needs only this list:
`pipeline.py` executes it, `planning` times it, lab e02c draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from minitrain.errors import InputError, unknown_name


class Operation(NamedTuple):
    """One pass of one microbatch through one chunk of this rank."""

    kind: str  # F, B or W
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


@dataclass(frozen=True)
class Schedule:
    """`ranks[r]` is the order of rank r; `chunks` is v."""

    name: str
    microbatches: int
    chunks: int
    ranks: tuple[tuple[Operation, ...], ...]

    @property
    def splits_backward(self) -> bool:
        return any(operation.kind == "W" for operation in self.ranks[0])

    def needs(self, rank: int, operation: Operation) -> Iterator[tuple[int, Operation]]:
        """What must be done before: the neighbour's operation, and this rank's own of before."""
        kind, microbatch, chunk = operation
        p, last = len(self.ranks), len(self.ranks) * self.chunks - 1
        stage = chunk * p + rank
        if kind == "F" and stage > 0:
            yield (stage - 1) % p, Operation("F", microbatch, (stage - 1) // p)
        if kind == "B":
            yield rank, Operation("F", microbatch, chunk)
            if stage < last:
                yield (stage + 1) % p, Operation("B", microbatch, (stage + 1) // p)
        if kind == "W":
            yield rank, Operation("B", microbatch, chunk)


def gpipe(p: int, m: int) -> Schedule:
    """All forwards, then all backwards: every microbatch's activations are alive at once."""
    check_sizes(p, m)
    order = [Operation("F", i) for i in range(m)] + [Operation("B", i) for i in range(m)]
    return Schedule("gpipe", m, 1, (tuple(order),) * p)


def one_forward_one_backward(p: int, m: int) -> Schedule:
    """Rank r runs p-r-1 forwards ahead, then alternates: at most p-r microbatches are alive."""
    check_sizes(p, m)
    forwards = [Operation("F", i) for i in range(m)]
    backwards = [Operation("B", i) for i in range(m)]
    orders = [alternate(forwards, backwards, p - r - 1) for r in range(p)]
    return Schedule("1f1b", m, 1, tuple(map(tuple, orders)))


def interleaved(p: int, m: int, v: int) -> Schedule:
    """1F1B over v chunks a rank: a group of microbatches goes through all chunks, then the next.

    A group has p microbatches, or a few more where p does not divide m: with fewer, a rank would
    wait for a forward that stands behind a backward waiting for it. With m < p there is one group,
    and every forward comes before the first backward.
    """
    check_sizes(p, m, v)
    if v == 1:
        return one_forward_one_backward(p, m)
    groups = grouped(m, max(1, m // p))
    forwards = [Operation("F", i, c) for group in groups for c in range(v) for i in group]
    backwards = [Operation("B", i, v - 1 - c) for group in groups for c in range(v) for i in group]
    ahead = (v - 1) * max(map(len, groups)) if m >= p else m * v
    orders = [alternate(forwards, backwards, ahead + 2 * (p - r - 1)) for r in range(p)]
    return Schedule("interleaved", m, v, tuple(map(tuple, orders)))


def zero_bubble(p: int, m: int) -> Schedule:
    """ZB-H1: 1F1B's order, with rank r's weight gradients r microbatches late, into its bubble."""
    check_sizes(p, m)
    orders = []
    for r in range(p):
        order: list[Operation] = []
        for operation in one_forward_one_backward(p, m).ranks[r]:
            order.append(operation)
            if operation.kind == "B" and operation.microbatch >= r:
                order.append(Operation("W", operation.microbatch - r))
        order += [Operation("W", i) for i in range(max(0, m - r), m)]
        orders.append(tuple(order))
    return Schedule("zero-bubble", m, 1, tuple(orders))


SCHEDULES: dict[str, Callable[[int, int, int], Schedule]] = {
    "gpipe": lambda p, m, v: gpipe(p, m),
    "1f1b": lambda p, m, v: one_forward_one_backward(p, m),
    "interleaved": interleaved,
    "zero-bubble": lambda p, m, v: zero_bubble(p, m),
}


def make_schedule(name: str, p: int, m: int, v: int = 1) -> Schedule:
    """The schedule of this name; only the interleaved one has more than one chunk a rank."""
    if name not in SCHEDULES:
        raise unknown_name("schedule", name, SCHEDULES)
    if v > 1 and name != "interleaved":
        raise InputError(f"'{name}' has one chunk a rank, not {v}: use 'interleaved', or 1 chunk")
    return SCHEDULES[name](p, m, v)


def alternate(forwards: list[Operation], backwards: list[Operation], ahead: int) -> list[Operation]:
    """`ahead` forwards, then one forward and one backward in turn, then what is left."""
    ahead = min(ahead, len(forwards))
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards):
        order += [forward, backward]
    return order + backwards[len(forwards) - ahead :]


def grouped(m: int, count: int) -> list[range]:
    """m microbatches in `count` groups whose sizes differ by at most one."""
    edges = [m * i // count for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def check_sizes(p: int, m: int, v: int = 1) -> None:
    for name, value in (("ranks", p), ("microbatches", m), ("chunks", v)):
        if not isinstance(value, int) or value < 1:
            raise InputError(f"a schedule with {value!r} {name}: give a whole number, 1 or more")
