from __future__ import annotations

import itertools

import pytest

from minitrain.errors import InputError
from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.parallel.pipeline.schedules import (
    dualpipe,
    forwards_alone,
    gpipe,
    interleaved,
    make_schedule,
    one_forward_one_backward,
    split_layers,
    zero_bubble,
)
from minitrain.parallel.pipeline.timeline import (
    bubble_fraction,
    clocked,
    peak_live,
)


def check_schedule(schedule):
    """Asserts that each operation is there exactly once on each rank, and that it halts."""
    kinds = "FBW" if schedule.splits_backward else "FB"
    for rank, order in enumerate(schedule.ranks):
        wanted = {
            Operation(kind, i, chunk)
            for kind in kinds
            for i in range(schedule.microbatches)
            for place, chunk in schedule.route(i)
            if place == rank
        }
        assert len(order) == len(set(order)), f"rank {rank} runs an operation twice"
        assert set(order) == wanted, f"rank {rank} lacks {sorted(wanted - set(order))[:3]}"
    clocked(schedule)


SIZES = list(itertools.product(range(1, 9), range(1, 20)))


@pytest.mark.parametrize("p,m", SIZES)
def test_every_schedule_is_whole_and_halts(p, m):
    """Any p and m: m < p and m not divisible by p among them, and v up to 5."""
    for name in ("gpipe", "1f1b", "zero-bubble", "dualpipe"):
        check_schedule(make_schedule(name, p, m))
    for v in range(2, 6):
        check_schedule(interleaved(p, m, v))


@pytest.mark.parametrize("p,m", SIZES)
def test_forwards_alone_are_a_wave(p, m):
    """Whatever the schedule was made for; one that is cut into p stages takes p + m - 1 forwards."""
    for name, v in (
        ("gpipe", 1),
        ("1f1b", 1),
        ("zero-bubble", 1),
        ("dualpipe", 1),
        ("interleaved", 3),
    ):
        wave = forwards_alone(make_schedule(name, p, 2, v), m)
        for rank, order in enumerate(wave.ranks):
            passes = [(i, c) for i in range(m) for place, c in wave.route(i) if place == rank]
            assert sorted(order) == sorted(Operation("F", i, c) for i, c in passes)
        end = max(event.end for events in clocked(wave).ranks for event in events)
        assert end == p + m - 1 or name in ("dualpipe", "interleaved")


@pytest.mark.parametrize("p,m", SIZES)
def test_bubble_of_gpipe_and_of_1f1b(p, m):
    assert bubble_fraction(gpipe(p, m)) == pytest.approx((p - 1) / m)
    assert bubble_fraction(one_forward_one_backward(p, m)) == pytest.approx((p - 1) / m)


@pytest.mark.parametrize("p,groups,v", itertools.product((2, 4, 8), (1, 2, 5), (2, 3, 4)))
def test_interleaving_divides_the_bubble_by_v(p, groups, v):
    m = p * groups
    assert bubble_fraction(interleaved(p, m, v)) == pytest.approx((p - 1) / (m * v))


@pytest.mark.parametrize("p,m", [(2, 4), (4, 8), (4, 9), (8, 16), (6, 31)])
def test_zero_bubble_leaves_a_third(p, m):
    """(p-1)(F+B-W) with F = B = W: a third of 1F1B's 3(p-1)."""
    assert bubble_fraction(zero_bubble(p, m)) == pytest.approx((p - 1) / (3 * m))


@pytest.mark.parametrize("p,m", [(2, 4), (4, 8), (4, 14), (6, 12), (8, 30)])
def test_dualpipe_meets_itself_in_the_middle(p, m):
    """(p/2-1)(F+B-W) idle, p+1 chunks alive on every rank, though each has two stages' weights."""
    schedule = dualpipe(p, m)
    seconds = {"F": 1.0, "B": 1.25, "W": 0.75}
    clock = clocked(schedule, lambda rank, operation: seconds[operation.kind])
    assert clock.makespan == pytest.approx(3 * m + (p / 2 - 1) * (1.0 + 1.25 - 0.75))
    assert peak_live(schedule) == [p + 1] * p
    assert all(schedule.stage_at[r, 0] + schedule.stage_at[r, 1] == p - 1 for r in range(p))


def test_a_message_to_a_place_where_nobody_waits_is_found():
    """A schedule that forgets that DualPipe's odd microbatches go up, and sends all down."""
    right = dualpipe(2, 4)
    with pytest.raises(AssertionError, match=r"lacks|deadlocks"):
        check_schedule(Schedule("wrong", 4, 2, right.ranks, right.routes[:1]))


@pytest.mark.parametrize("layers,stages", [(5, 2), (5, 4), (3, 4), (12, 4), (126, 128)])
def test_layers_are_split_evenly_with_the_least_at_the_ends(layers, stages):
    counts = split_layers(layers, stages)
    assert sum(counts) == layers and max(counts) - min(counts) <= 1
    assert counts[0] <= min(counts[1:-1], default=layers) and counts[-1] == min(counts)


@pytest.mark.parametrize("p,m", SIZES)
def test_live_activations(p, m):
    assert peak_live(gpipe(p, m)) == [m] * p
    assert peak_live(one_forward_one_backward(p, m)) == [min(p - r, m) for r in range(p)]
    assert max(peak_live(zero_bubble(p, m))) == min(p, m), "no more than 1F1B's first rank"


@pytest.mark.parametrize("p,groups,v", itertools.product((2, 4, 8), (2, 3), (2, 3)))
def test_live_activations_of_the_interleaved_schedule(p, groups, v):
    """Korthikanti et al. 2022: p·v (1 + (p-1)/(p v)) chunks on the first rank."""
    assert peak_live(interleaved(p, p * groups, v))[0] == p * v + p - 1


def test_the_order_is_the_textbooks():
    orders = [" ".join(map(str, order)) for order in one_forward_one_backward(2, 3).ranks]
    assert orders == ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]
    last = interleaved(2, 2, 2).ranks[1]
    assert " ".join(map(str, last)) == "F0 F1 F0.1 B0.1 F1.1 B1.1 B0 B1"


def test_a_deadlock_names_who_waits_for_what():
    wrong = [Operation("F", 0), Operation("B", 1), Operation("F", 1), Operation("B", 0)]
    right = one_forward_one_backward(2, 2).ranks[1]
    schedule = Schedule("wrong", 2, 1, (tuple(wrong), right))
    with pytest.raises(AssertionError, match=r"deadlocks: rank 0 before B1, rank 1 before F1"):
        check_schedule(schedule)


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda: gpipe(0, 4), "ranks is 0"),
        (lambda: interleaved(2, 0, 2), "microbatches is 0"),
        (lambda: make_schedule("gpipe", 2, 4, 2), "one chunk a rank"),
        (lambda: make_schedule("1F1B", 2, 4), "did you mean '1f1b'|no schedule"),
    ],
)
def test_what_is_wrong_is_said(call, words):
    with pytest.raises(InputError, match=words):
        call()
