"""The clock warms up, takes turns, and tells a median with its spread."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from minitrain.errors import InputError
from minitrain.measure.clock import (
    Comparison,
    Timing,
    compare,
    copy_bandwidth,
    matmul_peak,
    threads,
)
from minitrain.measure.parts import Parts, Span


def test_contenders_take_turns_after_the_warm_up():
    calls: list[str] = []
    calls_of = {name: partial(calls.append, name) for name in "ab"}
    found = compare(calls_of, repeats=3, warmup=1)
    assert len(found.timings["a"].seconds) == 3, "the warm-up is not timed"
    assert calls == ["b", "a", "a", "b", "b", "a", "a", "b"]


def test_median_and_spread_of_known_numbers():
    known = Timing((1.0, 2.0, 3.0, 4.0, 100.0))
    assert known.median == 3.0, "one outlier does not move it"
    assert known.best == 1.0
    assert known.spread == pytest.approx((4 - 2) / 3)
    assert Timing((1.0,)).spread == 0.0


def test_a_slow_spell_that_hits_both_leaves_ratio_and_its_spread():
    ours, peer = Timing((1.0, 10.0, 1.0, 10.0)), Timing((2.0, 20.0, 2.0, 20.0))
    pair = Comparison({"ours": ours, "peer": peer})
    assert pair.ratio("ours", "peer") == pytest.approx(0.5)
    assert pair.ratio("peer", "ours") == pytest.approx(2.0)
    assert pair.ratio_spread("ours", "peer") == 0.0
    assert ours.spread > 0.5
    assert "x ours" in repr(pair)


def test_threads_are_put_back_even_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), threads(1) as count:
        assert count == torch.get_num_threads() == 1
        raise RuntimeError
    assert torch.get_num_threads() == before


def test_the_machines_roofs_are_measured_once_and_plausible():
    peak, bandwidth = matmul_peak(), copy_bandwidth(megabytes=16)
    assert 1e9 < peak < 1e16 and 1e8 < bandwidth < 1e14
    assert matmul_peak() == peak and copy_bandwidth(megabytes=16) == bandwidth


# --- the parts of a step ---


class Ticks:
    def __init__(self):
        self.at = 0.0

    def __call__(self) -> float:
        return self.at

    def wait(self, seconds: float) -> None:
        self.at += seconds


def test_the_parts_fill_the_time_from_one_look_to_the_next():
    clock = Ticks()
    parts = Parts(clock)
    for name, seconds in (("data", 1.0), ("forward", 2.0), ("backward", 4.0)):
        parts.begin(name)
        clock.wait(seconds)
    first = parts.take()
    assert first == [
        Span("between", 0, 0), Span("data", 0, 1), Span("forward", 1, 3), Span("backward", 3, 7)
    ]  # fmt: skip
    clock.wait(0.5)
    parts.begin("optimizer")
    clock.wait(0.25)
    second = parts.take()
    assert second == [Span("backward", 7, 7.5), Span("optimizer", 7.5, 7.75)]
    whole = [*first, *second]
    assert sum(s.end - s.start for s in whole) == clock.at
    assert all(a.end == b.start for a, b in itertools.pairwise(whole))


def test_a_part_within_another_gives_the_time_back_also_after_an_error():
    clock = Ticks()
    parts = Parts(clock)
    parts.begin("between")
    clock.wait(1)
    with pytest.raises(KeyError), parts.during("evaluation"):
        clock.wait(3)
        raise KeyError
    clock.wait(1)
    seconds: dict[str, float] = {}
    for name, start, end in parts.take():
        seconds[name] = seconds.get(name, 0) + end - start
    assert seconds == {"between": 2, "evaluation": 3}


def test_bad_input_says_what_to_do():
    for functions, repeats in (({}, 3), ({"a": int}, 0)):
        with pytest.raises(InputError, match="try repeats=11"):
            compare(functions, repeats)
