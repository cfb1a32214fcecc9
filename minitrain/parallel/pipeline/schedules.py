"""Pipeline schedules as pure data: for each rank, the list of operations it runs, in order.

Of p ranks and m microbatches, each rank holds v chunks of the model: chunk c of rank r is stage
c·p + r of v·p. `F` is a forward, `B` a backward; some split it into `B` (the input's gradient,
which the rank before waits for) and `W` (the weights', which no rank waits for).

    GPipe        F0 F1 F2 F3 B0 B1 B2 B3    bubble (p-1)(F+B)      live m     Huang et al. 2019
    1F1B         F0 F1 B0 F2 B1 F3 B2 B3    bubble (p-1)(F+B)      live p-r   Narayanan et al. 2019
    interleaved  1F1B over v chunks a rank  bubble (p-1)(F+B)/v    live more  Narayanan et al. 2021
    zero-bubble  ZB-H1: W fills the bubble  bubble (p-1)(F+B-W)    live p     Qi et al. 2024
    DualPipe     from both ends at once     bubble (p/2-1)(F+B-W)  live p+1   DeepSeek-AI 2024

with F, B, W the seconds of one microbatch on one rank; if W is split off, B excludes it, and W is
the shortest. A schedule is only this list: `executor.py` executes it, `planning` times it, lab
e02c draws it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from minitrain.errors import InputError, check_whole, unknown_name
from minitrain.parallel.pipeline.operations import Operation, Schedule


def gpipe(p: int, m: int) -> Schedule:
    """All forwards, then all backwards: every microbatch's activations are alive at once."""
    check_sizes(p, m)
    order = [Operation("F", i) for i in range(m)] + [Operation("B", i) for i in range(m)]
    return Schedule("gpipe", m, 1, (tuple(order),) * p)


def one_forward_one_backward(p: int, m: int) -> Schedule:
    """Rank r runs p-r-1 forwards ahead, then alternates: at most p-r microbatches are live."""
    check_sizes(p, m)
    forwards = [Operation("F", i) for i in range(m)]
    backwards = [Operation("B", i) for i in range(m)]
    orders = [alternate(forwards, backwards, p - r - 1) for r in range(p)]
    return Schedule("1f1b", m, 1, tuple(map(tuple, orders)))


def interleaved(p: int, m: int, v: int) -> Schedule:
    """1F1B over v chunks a rank: a group of microbatches goes through all chunks, then the next.

    A group has p microbatches, or a few more if p does not divide m: with fewer, a rank would wait
    for a forward queued behind a backward that waits for it. With m < p there is one group, and
    every forward comes before the first backward.
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
    """ZB-H1: 1F1B's order; rank r's weight gradients come r microbatches late, in its bubble."""
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


def dualpipe(p: int, m: int) -> Schedule:
    """Even microbatches go down the ranks, odd ones up: rank r holds stage r and stage p-1-r.

    Each rank has the weights of two stages, and runs the forwards of one direction while it would
    wait for the backwards of the other. Every input gradient is sent before its W, even where the
    paper (arXiv 2412.19437, §3.2.1) keeps backwards whole: the bubble is smaller than its
    (p/2-1)(F+2B-W). Designed for even p and even m ≥ 2p; otherwise the surplus operations of such
    a schedule are dropped, which cannot cause a deadlock.
    """
    check_sizes(p, m)
    even, enough = p + p % 2, max(2 * (p + p % 2), m + m % 2)
    orders = [dualpipe_order(r, even, enough) for r in range(even)]
    if p % 2:
        del orders[even // 2]  # one of the middle two: the other holds the same stage twice
    kept = [tuple(operation for operation in order if operation.microbatch < m) for order in orders]
    down, up = (tuple((r, 0) for r in range(p)), tuple((r, 1) for r in reversed(range(p))))
    return Schedule("dualpipe", m, 2, tuple(kept), (down, up))


def dualpipe_order(rank: int, p: int, m: int) -> list[Operation]:
    """One rank's order in eight phases. 0 is the direction it sees early, 1 the other."""
    depth = min(rank, p - 1 - rank)  # from the nearer end
    inner = p // 2 - 1 - depth  # from the middle
    phases = [
        ("F0", 2 * inner),
        ("F0 F1", depth + 1),
        ("B1 W F1", inner),
        ("F0 B1 W F1 B0 W", m // 2 - p + depth + 1),
        ("B1 W F1 B0 W", inner),
        *[(f"B{1 - i % 2} W", 1) for i in range(depth + 1)],
        *[(f"B{1 - i % 2}", 1) for i in range(depth + 1, 2 * depth + 2)],
        ("W B0", inner),
        ("W", depth + 1),
    ]
    early = 0 if rank < p // 2 else 1
    done = dict.fromkeys(("F0", "F1", "B0", "B1"), 0)
    late: list[Operation] = []  # backwards whose weight gradients are pending
    order: list[Operation] = []
    for step in " ".join(" ".join([steps] * times) for steps, times in phases).split():
        if step == "W":
            order.append(late.pop(0)._replace(kind="W"))
            continue
        direction = int(step[1]) ^ early
        order.append(Operation(step[0], 2 * done[step] + direction, direction))
        done[step] += 1
        if step[0] == "B":
            late.append(order[-1])
    return order


SCHEDULES: dict[str, Callable[[int, int, int], Schedule]] = {
    "gpipe": lambda p, m, v: gpipe(p, m),
    "1f1b": lambda p, m, v: one_forward_one_backward(p, m),
    "interleaved": interleaved,
    "zero-bubble": lambda p, m, v: zero_bubble(p, m),
    "dualpipe": lambda p, m, v: dualpipe(p, m),
}


def make_schedule(name: str, p: int, m: int, v: int = 1) -> Schedule:
    """The schedule of this name; only the interleaved one has more than one chunk a rank."""
    if name not in SCHEDULES:
        raise unknown_name("schedule", name, SCHEDULES)
    if v > 1 and name != "interleaved":
        raise InputError(f"'{name}' has one chunk a rank, not {v}: use 'interleaved', or 1 chunk")
    return SCHEDULES[name](p, m, v)


def forwards_alone(schedule: Schedule, m: int) -> Schedule:
    """m forwards over the same stages, without backwards: an evaluation."""
    routes = ((i, schedule.route(i)) for i in range(m))
    wave = sorted((i + stage, i, place) for i, route in routes for stage, place in enumerate(route))
    orders = [
        tuple(Operation("F", i, chunk) for _, i, (rank, chunk) in wave if rank == mine)
        for mine in range(len(schedule.ranks))
    ]
    return replace(schedule, microbatches=m, ranks=tuple(orders))


def alternate(forwards: list[Operation], backwards: list[Operation], ahead: int) -> list[Operation]:
    """`ahead` forwards, then alternating forwards and backwards, then the remaining backwards."""
    ahead = min(ahead, len(forwards))
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards):
        order += [forward, backward]
    return order + backwards[len(forwards) - ahead :]


def grouped(m: int, count: int) -> list[range]:
    """m microbatches in `count` groups whose sizes differ by at most one."""
    edges = [m * i // count for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def split_layers(layers: int, stages: int) -> list[int]:
    """Layers per stage, as even as possible.

    Stages in the middle take the remainder, since the ends also have the embedding and the head.
    """
    base, more = divmod(layers, stages)
    counts = [base] * stages
    for i in sorted(range(stages), key=lambda i: (-min(i, stages - 1 - i), i))[:more]:
        counts[i] += 1
    return counts


def check_sizes(p: int, m: int, v: int = 1) -> None:
    for name, value in (("ranks", p), ("microbatches", m), ("chunks", v)):
        check_whole(f"the schedule's number of {name}", value)
