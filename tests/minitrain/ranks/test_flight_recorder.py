"""The flight recorder, alone: who is stuck, who came with something else, what it forgets."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.ranks.flight_recorder import Channel, FlightRecorder, stuck


def recorders(tmp_path, ranks):
    watching = FlightRecorder.create(tmp_path / "file", ranks)
    return watching, [FlightRecorder.open(tmp_path / "file", rank) for rank in range(ranks)]


def everyone(rank, ranks, id=7):
    return Channel(id, id, tuple(r for r in range(ranks) if r != rank))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(2, 5))
def test_stuck_is_what_no_order_of_events_can_free(tmp_path_factory, data, ranks):
    """Random waits between pairs, against an oracle that follows chains of waits one by one."""
    watching, own = recorders(tmp_path_factory.mktemp("recorder"), ranks)
    target = {}  # rank -> the rank that it waits for
    ended = data.draw(st.sets(st.integers(0, ranks - 1)))
    for rank in set(range(ranks)) - ended:
        others = [r for r in range(ranks) if r != rank]
        peer = data.draw(st.one_of(st.none(), st.sampled_from(others)))
        own[rank].compute()
        if peer is not None:
            target[rank] = peer
            entry, _ = own[rank].record(Channel(rank * 8 + 1, rank * 8 + 2, (peer,)), "k", "recv")
            own[rank].wait(entry, "file:1", provable=True)

    def is_hopeless(rank):
        seen = set()
        while rank in target and rank not in seen:
            seen.add(rank)
            rank = target[rank]
        return rank in ended or rank in seen

    assert stuck(watching, ended).keys() == {rank for rank in target if is_hopeless(rank)}


def test_whoever_records_second_learns_of_a_difference(tmp_path):
    _, (first, second) = recorders(tmp_path, 2)
    assert first.record(everyone(0, 2), "all_reduce 4", "all_reduce of [4]")[1] is None
    assert second.record(everyone(1, 2), "all_reduce 5", "all_reduce of [5]")[1] == 0
    assert second.words_at(0, 7, 0) == "all_reduce of [4]"


def test_a_recorder_full_of_channels_goes_on_without_claims(tmp_path):
    watching, (first, second) = recorders(tmp_path, 2)
    for number in range(1, 200):
        entry, other = first.record(everyone(0, 2, number), "k", "words")
        assert other is None
    first.wait(entry, "file:1", provable=True)
    second.compute()
    assert stuck(watching, {1}) == {}


def test_ranks_far_ahead_are_compared_as_long_as_it_remembers(tmp_path):
    _, (ahead, behind) = recorders(tmp_path, 2)
    for number in range(100):
        assert ahead.record(everyone(0, 2), f"op {number}", "words")[1] is None
    found = [
        behind.record(everyone(1, 2), f"op {n if n != 90 else -1}", "words")[1] for n in range(100)
    ]
    assert [n for n, other in enumerate(found) if other is not None] == [90]
