from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from minitrain.errors import InputError
from minitrain.network.fabric import (
    FABRICS,
    INFINIBAND_NDR,
    Device,
    Fabric,
    find_fabric,
)
from minitrain.network.links import Link, LinkModel, published_sweep
from minitrain.parallel.collectives import algorithms
from minitrain.parallel.mesh import Mesh
from minitrain.ranks.launch import launch

# A message of 1 MB takes 1,000 s and computing next to nothing: what is left is the model's own time.
SLOW = Fabric("slow", Device("any"), LinkModel(Link(10.0, 1e-3)), compute_scale=1e-9)
# The other way round: 1 CPU second is 1,000 s.
BUSY = replace(SLOW, name="busy", compute_scale=1e3)
MEGABYTE = 250_000  # float32 elements


def compute(cpu_seconds: float) -> None:
    end = time.thread_time() + cpu_seconds
    while time.thread_time() < end:
        pass


def durations(group):
    x = torch.ones(MEGABYTE)
    part, whole = torch.ones(MEGABYTE // group.size), torch.empty(MEGABYTE)
    calls = {
        "all_reduce": lambda: group.all_reduce(x),
        "reduce_scatter": lambda: group.reduce_scatter(part, x),
        "all_gather": lambda: group.all_gather(whole, part),
        "ring_all_reduce": lambda: algorithms.ring_all_reduce(group, x),
        "recursive_doubling_all_reduce": lambda: algorithms.recursive_doubling_all_reduce(group, x),
        "naive_broadcast": lambda: algorithms.naive_broadcast(group, x),
        "tree_broadcast": lambda: algorithms.tree_broadcast(group, x),
        "naive_all_reduce": lambda: algorithms.naive_all_reduce(group, x),
    }
    seconds = {}
    for name, call in calls.items():
        group.barrier()
        start = group.now()
        call()
        seconds[name] = group.now() - start
    return seconds


def test_operations_take_what_their_formula_says():
    ranks, alpha, transfer = 4, 10.0, 1000.0
    results = launch(durations, ranks=ranks, fabric=SLOW, timeout=60)
    slowest = {name: max(result[name] for result in results) for name in results[0]}
    ring = (ranks - 1) * alpha + (ranks - 1) / ranks * transfer
    expected = {
        "all_reduce": 2 * ring,
        "reduce_scatter": ring,
        "all_gather": ring,
        "ring_all_reduce": 2 * ring,
        "recursive_doubling_all_reduce": 2 * (alpha + transfer),
        "naive_broadcast": alpha + (ranks - 1) * transfer,  # one outgoing link; latencies overlap
        "tree_broadcast": 2 * (alpha + transfer),
        "naive_all_reduce": 2 * (alpha + (ranks - 1) * transfer),
    }
    for name, seconds in expected.items():
        assert slowest[name] == pytest.approx(seconds, rel=1e-3), name


def overlapped(group):
    x = torch.ones(MEGABYTE)
    group.barrier()
    start = group.now()
    work = group.all_reduce(x, async_op=True)
    compute(0.3)  # 300 s
    work.wait()
    both = group.now() - start
    trace = group.trace
    return both, trace.hidden_seconds(), trace.ops[-1].done - trace.ops[-1].waited


def test_compute_hides_a_message_and_wait_joins_the_two():
    """Message 1,020 s (2 ranks: 2α + S·β), compute 300 s: together 1,020 s, not 1,320 s."""
    for both, hidden, exposed in launch(overlapped, ranks=2, fabric=BUSY, timeout=60):
        assert both == pytest.approx(1020, rel=0.02)
        assert hidden == pytest.approx(300, rel=0.1) and exposed == pytest.approx(720, rel=0.1)


def late(group):
    group.barrier()
    start = group.now()
    if group.rank == 1:
        compute(0.2)  # 200 s
    group.all_reduce(torch.ones(1))
    return group.now() - start


def test_everyone_waits_for_a_straggler():
    for seconds in launch(late, ranks=3, fabric=BUSY, timeout=60):
        assert seconds == pytest.approx(200 + 4 * 10, rel=0.05)


def queued(group):
    group.barrier()
    start = group.now()
    works = [group.all_reduce(torch.ones(MEGABYTE), async_op=True) for _ in range(3)]
    works[1].wait()
    second = group.now() - start
    works[0].wait(), works[2].wait()
    return second, group.now() - start


def test_collectives_of_a_group_run_one_after_the_other():
    for second, third in launch(queued, ranks=2, fabric=SLOW, timeout=60):
        assert second == pytest.approx(2 * 1020, rel=1e-3) and third == pytest.approx(
            3 * 1020, rel=1e-3
        )


def lines(group):
    line = Mesh(a=2, b=2).group(group, "b")
    group.barrier()
    start = group.now()
    total = line.all_reduce(torch.full((MEGABYTE,), float(group.rank)))
    return total[0].item(), group.now() - start


def test_subgroups_share_the_clock_and_the_values_are_real():
    results = launch(lines, ranks=4, fabric=SLOW, timeout=60)
    assert [value for value, _ in results] == [1, 1, 5, 5]
    assert all(seconds == pytest.approx(1020, rel=1e-3) for _, seconds in results)


def test_what_is_emulated_says_so():
    results = launch(late, ranks=2, fabric="h100-nvlink", timeout=60)
    assert results.fabric == "h100-nvlink" and "emulated" in repr(results)
    assert all(trace.emulated for trace in results.traces)
    assert 0 < results.emulated_seconds < 0.05, "200 ms of this CPU is microseconds of an H100"
    assert "emulated" in repr(find_fabric("h100-nvlink"))
    real = launch(late, ranks=2, timeout=60)
    assert real.fabric is None and real.emulated_seconds is None and not real.traces[0].emulated


def test_two_levels_predict_a_published_cluster():
    """16 GiB over 4 nodes of 8 B200: 845.67 GB/s inside a node, a 400 Gb/s card a GPU between."""
    size, seconds = published_sweep("b200_4x8gpu").points[0]
    inside = LinkModel(Link(3e-6, 1 / 845.67e9))
    cluster = Fabric("b200", Device("B200"), inside, LinkModel(INFINIBAND_NDR))
    assert cluster.seconds("all_reduce", size, range(32)) == pytest.approx(seconds, rel=0.05)


def test_the_network_between_nodes_is_what_slows():
    fabric = find_fabric("h100-infiniband")
    inside, across = (fabric.seconds("all_reduce", 2**30, range(n)) for n in (8, 32))
    assert 1.25 * inside < across < 2 * inside, "a card for each GPU: slower, not 10 times slower"
    neighbours = fabric.seconds("all_reduce", 2**30, [0, 1])
    strangers = fabric.seconds("all_reduce", 2**30, [0, 8])
    assert strangers > 5 * neighbours, "placement matters"


KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(FABRICS))
def test_more_bytes_never_take_less_time(name, kind):
    fabric = find_fabric(name)
    for ranks in (1, 2, 8, 16):
        seconds = [fabric.seconds(kind, 2.0**k, range(ranks)) for k in range(0, 34, 3)]
        assert seconds == sorted(seconds)
        assert (seconds[0] > 0) == (ranks > 1)


@pytest.mark.parametrize(
    "mistake,words",
    [
        (lambda: find_fabric("h100-nvlnk"), "did you mean 'h100-nvlink'"),
        (lambda: launch(late, ranks=2, fabric="ethernet"), "known are"),
        (lambda: replace(SLOW, compute_scale=0.0), "more than 0"),
        (lambda: replace(SLOW, ranks_per_node=0), "1 or more"),
    ],
)
def test_mistakes_get_a_sentence(mistake, words):
    with pytest.raises(InputError) as caught:
        mistake()
    assert words in str(caught.value)


def test_payload_scale_lets_a_small_tensor_stand_for_a_large_one():
    fabric = find_fabric("h100-nvlink")
    large = replace(fabric, payload_scale=1000).seconds("all_reduce", 1e6, range(8))
    assert large == fabric.seconds("all_reduce", 1e9, range(8))
