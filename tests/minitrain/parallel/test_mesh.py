from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh

from minitrain.errors import InputError
from minitrain.measure.traffic import Op, Trace
from minitrain.parallel.mesh import Mesh, bytes_between, node_traffic, place, receivers
from minitrain.ranks.launch import launch

sizes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@settings(max_examples=50, deadline=None)
@given(sizes)
def test_coordinates_are_those_of_a_row_major_grid(shape):
    mesh = Mesh(**{f"axis{i}": size for i, size in enumerate(shape)})
    grid = torch.arange(mesh.size).view(shape)
    for rank in range(mesh.size):
        here = mesh.coordinates(rank)
        assert grid[tuple(here.values())].item() == rank
        for i, axis in enumerate(mesh.axes):
            line = grid.movedim(i, -1)[tuple(v for a, v in here.items() if a != axis)]
            assert mesh.ranks(axis, rank) == line.tolist()


def both_meshes(group):
    theirs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    mesh = Mesh(dp=2, tp=2)
    lines = {}
    for axis in mesh.axes:
        line = mesh.group(group, axis)
        assert list(line.ranks) == torch.distributed.get_process_group_ranks(theirs.get_group(axis))
        assert line.rank == theirs.get_local_rank(axis) == mesh.coordinates(group.rank)[axis]
        lines[axis] = line.all_reduce(torch.tensor([float(group.rank)])).item()
    return lines


def test_against_init_device_mesh():
    lines = list(launch(both_meshes, ranks=4, timeout=60))
    assert [line["tp"] for line in lines] == [1, 1, 5, 5]
    assert [line["dp"] for line in lines] == [2, 4, 2, 4]


@pytest.mark.parametrize(
    "mistake,words",
    [
        (lambda: Mesh(dp=2, tp=4).check(6), "Mesh(dp=2, tp=3)"),
        (lambda: Mesh(dp=2, tp=4).check(7), "Mesh(dp=7)"),
        (lambda: Mesh(dp=2, tp=4).check(16), "Mesh(dp=4, tp=4) or Mesh(dp=2, tp=8)"),
        (lambda: Mesh(), "Mesh(dp=4)"),
        (lambda: Mesh(dp=0), "1 or more"),
        (lambda: Mesh(dp=2.0), "whole number"),
        (lambda: node_traffic([], 0), "1 or more"),
        (lambda: Mesh(dp=2, tp=4)["pp"], "known are dp, tp"),
        (lambda: Mesh(dp=2).coordinates(2), "0 to 1"),
    ],
)
def test_mistakes_say_what_fits(mistake, words):
    with pytest.raises(InputError) as caught:
        mistake()
    assert words in str(caught.value)


# ---- placement: what leaves a node is counted edge by edge ----


def talk(group):
    """A little of everything, on the whole group and on a line of it."""
    x = torch.ones(8)
    group.all_reduce(x)
    group.all_to_all(torch.empty(8), x)
    pair = group.split(group.rank % 2)  # ranks 0 2, and 1 3
    if pair.rank == 0:
        pair.send(x, 1)
    else:
        pair.recv(x, 0)


def test_every_edge_is_inside_a_node_or_between():
    traces = launch(talk, ranks=4).traces
    ring, shares, message = 2 * 3 * 32 // 4, 24, 32  # bytes a rank
    two = node_traffic(traces, 2)
    assert two.between == 2 * ring + 4 * shares * 2 // 3 + 2 * message  # of the ring: 1-2 and 3-0
    assert two.inside == 2 * ring + 4 * shares // 3
    sent = sum(trace.bytes_sent() for trace in traces)
    for ranks_per_node in (1, 2, 3, 4):
        traffic = node_traffic(traces, ranks_per_node)
        assert traffic.inside + traffic.between == sent
    assert node_traffic(traces, 1).inside == 0 and node_traffic(traces, 4).between == 0


def test_a_member_is_known_by_its_number_in_the_launch():
    """Negative: read as places in the group, ranks 4 and 6 would share a node of 2 with nobody."""
    op = Op("send", 10, 10, 2, peer=1, members=(4, 6))
    assert receivers(op, 4) == {6: 10}
    assert node_traffic([Trace(4, ops=[op])], 2).between == 10
    assert node_traffic([Trace(4, ops=[op])], 4).inside == 10


def test_the_order_is_found_by_counting():
    """One axis of 8 is longer than a node of 4: the rule "chattiest last" costs more than twice."""
    sizes, sent = {"a": 8, "b": 2}, {"a": 10, "b": 9}
    rule, best = Mesh(b=2, a=8), place(sizes, sent, 4)
    assert best.axes == ("a", "b")
    assert bytes_between(rule, sent, 4) == 4 * 10 + 16 * 9  # of a: the two ends of each half
    assert bytes_between(best, sent, 4) == 8 * 10
    assert place({"tp": 4, "dp": 2}, {"dp": 1, "tp": 5}, 4).axes == ("dp", "tp")
    assert bytes_between(Mesh(dp=2, tp=4), {"tp": 5}, 8) == 0
