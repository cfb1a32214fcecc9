"""Traffic: intervals against counting instants one by one, and the ring's bytes against a ring."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.measure.traffic import Op, Trace, WallClock, intersection, length, ring_bytes, union

INSTANTS = 40  # integer instants, so that each can be counted


def intervals():
    ends = st.tuples(st.integers(0, INSTANTS), st.integers(0, INSTANTS))
    return st.lists(ends.map(sorted).map(tuple), max_size=8)


def covered(spans):
    """The oracle: which unit steps lie in one of the spans, one by one."""
    return {t for t in range(INSTANTS) if any(a <= t < b for a, b in spans)}


@settings(deadline=None)
@given(intervals())
def test_a_union_covers_the_same_instants_once(spans):
    merged = union(spans)
    assert covered(merged) == covered(spans)
    assert length(merged) == len(covered(spans))
    assert all(end < start for (_, end), (start, _) in pairwise(merged))


@settings(deadline=None)
@given(intervals(), intervals())
def test_an_intersection_covers_what_both_cover(a, b):
    common = intersection(union(a), union(b))
    assert covered(common) == covered(a) & covered(b)
    assert length(common) == len(covered(a) & covered(b))


@st.composite
def operations(draw):
    """An op with issued <= waited <= done, that ended somewhere between issued and done."""
    issued, waited, done = sorted(draw(st.integers(0, INSTANTS)) for _ in range(3))
    finished = draw(st.one_of(st.none(), st.integers(issued, done)))
    return Op("all_reduce", 8, 8, 2, None, issued, waited, finished, done)


@settings(deadline=None)
@given(st.lists(operations(), max_size=8))
def test_exposed_and_hidden_split_the_time_of_communication(ops):
    trace = Trace(ops=ops)
    waits = covered([(op.waited, op.done) for op in ops])
    under_way = covered([(op.issued, op.end) for op in ops])
    assert trace.exposed_seconds() == len(waits)
    assert trace.hidden_seconds() == len(under_way - waits)
    assert trace.exposed_seconds() + trace.hidden_seconds() == len(under_way | waits)


@pytest.mark.parametrize("read", [Trace.exposed_seconds, Trace.hidden_seconds])
def test_a_work_that_no_one_waited_for_is_told(read):
    trace = Trace(1, ops=[Op("all_reduce", 8, 8, 2, issued=1.0, finished=2.5)])
    words = r"never waited for \(rank 1, all_reduce of 8 bytes\): call `work.wait\(\)`"
    with pytest.raises(InputError, match=words):
        read(trace)


def test_a_kind_that_is_no_ring_is_refused():
    with pytest.raises(InputError, match="did you mean 'all_reduce'"):
        ring_bytes("allreduce", 8, 2)


@settings(deadline=None)
@given(st.lists(operations(), max_size=4))
def test_a_trace_travels_as_json(ops):
    trace = Trace(3, True, ops, [("forward", 0.5), (("B", 3, 1), 0.7)])
    assert Trace.from_dict(json.loads(json.dumps(trace.as_dict()))) == trace


def test_marks_are_made_by_the_clock_and_not_after_it_is_gone():
    trace = Trace(clock=WallClock())
    trace.mark("forward")
    trace.mark("backward")
    assert [name for name, _ in trace.marks] == ["forward", "backward"]
    assert 0 <= trace.marks[0][1] <= trace.marks[1][1]
    with pytest.raises(AssertionError, match="no clock"):
        Trace.from_dict(trace.as_dict()).mark("late")
