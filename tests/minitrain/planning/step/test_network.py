from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.network.links import KINDS
from minitrain.planning.hardware import chips
from minitrain.planning.step.network import IDEAL, Fabric, Wire, fabric_of

KINDS = [kind for kind in KINDS if kind != "barrier"]
H100 = fabric_of(chips()["H100-SXM-80GB"], 8)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 64), st.floats(1, 1e10), st.floats(1, 1e10))
def test_more_bytes_are_never_faster(kind, ranks, a, b):
    small, large = sorted((a, b))
    assert H100.seconds(kind, small, ranks) <= H100.seconds(kind, large, ranks)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 64), st.floats(1, 1e10), st.floats(1, 10))
def test_more_bandwidth_is_never_slower(kind, ranks, size, factor):
    faster = Fabric(
        Wire(H100.inside.alpha, H100.inside.bandwidth * factor),
        Wire(H100.between.alpha, H100.between.bandwidth * factor),
        8, H100.tree_alpha,
    )  # fmt: skip
    for stride in (1, 8):
        assert faster.seconds(kind, size, ranks, stride) <= H100.seconds(kind, size, ranks, stride)


@pytest.mark.parametrize("kind,ranks", itertools.product(KINDS, (1, 2, 8, 64)))
def test_an_ideal_network_takes_no_time_and_one_rank_needs_none(kind, ranks):
    assert IDEAL.seconds(kind, 1e9, ranks) == 0
    assert H100.seconds(kind, 1e9, 1) == 0


def test_units():
    """1 GB to the next node at 73.5% of 50 GB/s: 27 ms; within the node at 362 GB/s: 2.8 ms."""
    assert H100.send(1e9, stride=8) == pytest.approx(0.0272, rel=0.01)
    assert H100.send(1e9, stride=1) == pytest.approx(0.00276, rel=0.01)


def test_a_hierarchy_beats_a_ring_of_single_cards():
    """64 chips in 8 nodes: each card carries an eighth."""
    flat = Fabric(H100.between, H100.between, 1, H100.tree_alpha)
    assert H100.seconds("all_reduce", 1e9, 64) < flat.seconds("all_reduce", 1e9, 64) / 4


def test_a_tree_beats_a_ring_where_latency_rules():
    wire = H100.between
    ring = wire.seconds("all_reduce", 1024, 1024)
    assert H100.across("all_reduce", 1024, 1024) < ring / 10
    assert H100.across("all_reduce", 1e10, 4) == wire.seconds("all_reduce", 1e10, 4)


def test_the_measured_32_gpu_all_reduce_of_b200():
    """381.8 GB/s of bus bandwidth at 16 GiB on 4 nodes of 8: not used in any fit."""
    fabric = fabric_of(chips()["B200-SXM"], 8)
    size = 16 * 2**30
    busbw = 2 * 31 / 32 * size / fabric.seconds("all_reduce", size, 32) / 1e9
    assert busbw == pytest.approx(381.8, rel=0.10)
