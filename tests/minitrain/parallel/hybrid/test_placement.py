"""What leaves a node is counted edge by edge; the chatty axis inside it halves that, and more."""

from __future__ import annotations

import pytest
import torch

from minitrain.errors import InputError
from minitrain.measure.traffic import Op, Trace
from minitrain.parallel.hybrid.model import MeshModel, MeshOptions
from minitrain.parallel.hybrid.placement import bytes_between, node_traffic, place, receivers
from minitrain.parallel.mesh import Mesh
from minitrain.ranks.launch import launch

from .mesh_toys import DENSE, batches, build


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


def test_a_node_has_a_rank():
    with pytest.raises(InputError, match="1 or more"):
        node_traffic([], 0)


def one_step(group, mesh):
    model = MeshModel(build(DENSE, dtype=torch.float64), mesh, group, MeshOptions())
    group.trace.ops.clear()
    model.backward([model.share(batches(2, 64)[0])])


def test_the_chatty_axis_inside_the_node_cuts_what_leaves_it_by_more_than_half():
    sizes = {"pp": 1, "dp": 2, "ep": 1, "cp": 1, "tp": 4}
    aware, naive = Mesh(**sizes), Mesh(**dict(reversed(sizes.items())))
    traffic = [node_traffic(launch(one_step, mesh, ranks=8).traces, 4) for mesh in (aware, naive)]
    totals = [part.inside + part.between for part in traffic]
    assert totals[0] == totals[1], "the same step sends the same bytes"
    assert traffic[0].between < 0.5 * traffic[1].between


def test_the_order_is_found_by_counting():
    """One axis of 8 is longer than a node of 4: the rule "chattiest last" costs more than twice."""
    sizes, sent = {"a": 8, "b": 2}, {"a": 10, "b": 9}
    rule, best = Mesh(b=2, a=8), place(sizes, sent, 4)
    assert best.axes == ("a", "b")
    assert bytes_between(rule, sent, 4) == 4 * 10 + 16 * 9  # of a: the two ends of each half
    assert bytes_between(best, sent, 4) == 8 * 10
    assert place({"tp": 4, "dp": 2}, {"dp": 1, "tp": 5}, 4).axes == ("dp", "tp")
    assert bytes_between(Mesh(dp=2, tp=4), {"tp": 5}, 8) == 0
