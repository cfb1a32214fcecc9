"""This machine as a fabric: α and β of its own links, and what messages cost its cores.

For each kind of operation the ranks time several sizes in turn, and least squares on the medians
gives α and β. Two more numbers matter where the ranks share the cores with the messages:

    compute_scale   seconds on the wall per CPU second, when all ranks compute at once
    overlap_cost κ  from T = C + d + κ·h: compute of C seconds with messages under way for h of
                    them, and d seconds for the last message, which nothing hides

Checked by `tests/minitrain/ranks/test_calibration.py`: the emulated 2-rank DDP step is within
15% of the measured one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median

import torch

from minitrain.errors import InputError
from minitrain.network.fabric import Device, Fabric
from minitrain.network.links import Link, LinkModel, Sweep, fit
from minitrain.ranks.group import Group
from minitrain.ranks.launch import launch

SIZES = (4 * 2**10, 64 * 2**10, 2**20, 4 * 2**20)  # bytes; divisible by the number of ranks
REPEATS = 21
OVERLAPS = 2  # for each repeat: they give small differences of times that scatter
PARTS = 4  # of the compute that messages overlap with


def measure(ranks: int = 2) -> Fabric:
    """Takes about five seconds. Measure while the machine is as busy as it will be later."""
    if ranks < 2:
        raise InputError(f"a calibration on {ranks} ranks has no messages to time: use 2 or more")
    times = launch(time_everything, ranks=ranks, timeout=120)
    seconds = {key: slowest([result[key] for result in times]) for key in times[0]}
    links = fit_links(seconds, ranks)
    compute, message, both = (seconds[name, 0] for name in ("compute", "message", "both"))
    overlap_cost = (both - compute - message) / ((PARTS - 1) * message)
    scales = [median(result["compute", 0]) / median(result["cpu", 0]) for result in times]
    return Fabric(
        "this-machine",
        Device(f"this machine, calibrated on {ranks} ranks"),
        LinkModel(links["all_reduce"], links),
        compute_scale=median(scales),
        overlap_cost=max(overlap_cost, 0.0),
        ranks_per_node=1024,
    )


def fit_links(seconds: dict[tuple[str, int], float], ranks: int) -> dict[str, Link]:
    """α and β of each kind of operation, from the seconds that each of its sizes took."""
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for (kind, nbytes), took in seconds.items():
        if nbytes:
            points[kind].append((nbytes, took))
    return {kind: fit(Sweep(kind, ranks, tuple(sizes))) for kind, sizes in points.items()}


def slowest(times_of_ranks: list[list[float]]) -> float:
    """The median over repeats of the last rank's time: an operation ends when it ends for all."""
    return median(map(max, zip(*times_of_ranks)))


Times = dict[tuple[str, int], list[float]]  # (what, bytes) -> seconds of each repeat


def time_everything(group: Group) -> Times:
    """On each rank: all operations in turn, REPEATS times and more, after what warms up."""
    times: Times = {}
    for _ in range(REPEATS + 1):
        for nbytes in SIZES:
            nbytes = nbytes // (4 * group.size) * 4 * group.size  # the same elements on each rank
            for kind, operation in operations(group, nbytes).items():
                times.setdefault((kind, nbytes), []).append(seconds_of(group, operation))
        for _ in range(OVERLAPS):
            for name, seconds in overlap(group).items():
                times.setdefault((name, 0), []).append(seconds)
    return {key: seconds[1:] for key, seconds in times.items()}


def operations(group: Group, nbytes: int) -> dict[str, Callable[[], object]]:
    whole, other = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
    part = torch.zeros(nbytes // 4 // group.size)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    return {
        "send": lambda: group.exchange(whole, right, other, left),
        "broadcast": lambda: group.broadcast(whole),
        "all_reduce": lambda: group.all_reduce(whole),
        "reduce_scatter": lambda: group.reduce_scatter(part, whole),
        "all_gather": lambda: group.all_gather(whole, part),
        "all_to_all": lambda: group.all_to_all(other, whole),
        "barrier": group.barrier,
    }


def overlap(group: Group) -> dict[str, float]:
    """Seconds of a compute, of a message, and of both as DDP does it: a message after each part."""
    message, layer = torch.zeros(2**18), torch.nn.Linear(256, 256)  # 1 MiB
    x = torch.randn(256, 256)

    def part_of_backward() -> None:
        for _ in range(6):
            layer(x).square().sum().backward()

    def compute() -> None:
        for _ in range(PARTS):
            part_of_backward()

    def both() -> None:
        works = []
        for _ in range(PARTS):
            part_of_backward()
            works.append(group.all_reduce(message, async_op=True))
        for work in works:
            work.wait()

    cpu = time.thread_time()
    computed = seconds_of(group, compute)
    cpu = time.thread_time() - cpu
    return {
        "compute": computed,
        "cpu": cpu,
        "message": seconds_of(group, lambda: group.all_reduce(message)),
        "both": seconds_of(group, both),
    }


def seconds_of(group: Group, function: Callable[[], object]) -> float:
    group.barrier()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
