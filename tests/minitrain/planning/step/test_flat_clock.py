from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.parallel.pipeline.schedules import make_schedule
from minitrain.parallel.pipeline.timeline import clocked
from minitrain.planning.step.flat_clock import KINDS, NOTHING, finish, flattened, slot_of

SHAPES = [
    ("gpipe", 4, 8, 1),
    ("1f1b", 4, 9, 1),
    ("1f1b", 8, 3, 1),
    ("interleaved", 4, 8, 3),
    ("interleaved", 3, 7, 2),
    ("zero-bubble", 4, 6, 1),
]


def named_clock(name, p, m, v, seconds, send):
    """Each rank's end by the clock that walks named operations."""

    def of(rank, operation):
        return seconds[slot_of(rank, operation.chunk, operation.kind, v)]

    return [events[-1].end for events in clocked(make_schedule(name, p, m, v), of, send).ranks]


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data(), send=st.floats(0, 2))
@settings(max_examples=8, deadline=None)
def test_the_same_bits_as_the_named_clock(shape, data, send):
    _, p, _, v = shape
    size = p * v * len(KINDS)
    seconds = data.draw(st.lists(st.floats(0.1, 3), min_size=size, max_size=size))
    assert finish(flattened(*shape), seconds, send, p) == named_clock(*shape, seconds, send)


@pytest.mark.parametrize("shape", SHAPES)
def test_each_operation_comes_after_what_it_needs(shape):
    flat = flattened(*shape)
    assert all(need < place for place, need in enumerate(flat.need))


def test_without_its_needs_the_clock_is_another():
    """The comparison above can fail: with no rank waiting for another there is no bubble."""
    flat = flattened("1f1b", 4, 8, 1)
    free = replace(flat, need=type(flat.need)("i", [NOTHING] * len(flat.need)))
    seconds = [1.0] * 12
    assert finish(free, seconds, 0.0, 4) == [16.0] * 4
    assert max(finish(flat, seconds, 0.0, 4)) == 16.0 + 3 * 2
