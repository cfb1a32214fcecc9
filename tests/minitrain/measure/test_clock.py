"""The clock warms up, takes turns, and tells a median with its spread."""

from __future__ import annotations

import time

import pytest
import torch

from minitrain.errors import InputError
from minitrain.measure.clock import (
    Comparison,
    Timing,
    compare,
    copy_bandwidth,
    matmul_peak,
    median_seconds,
    threads,
    timing,
)


def test_a_sleep_takes_as_long_as_it_sleeps():
    assert 0.002 <= median_seconds(lambda: time.sleep(0.002), repeats=5, warmup=0) < 0.5


def test_contenders_take_turns_after_the_warm_up():
    calls: list[str] = []
    compare({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3, warmup=1)
    assert calls == ["b", "a", "a", "b", "b", "a", "a", "b"]


def test_warm_up_calls_are_not_timed():
    calls = iter(range(100))
    slow_once = timing(lambda: time.sleep(0.5 if next(calls) == 0 else 0), repeats=5, warmup=1)
    assert max(slow_once.seconds) < 0.5


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
    matmul = torch.randn(512, 512)
    rate = 2 * 512**3 / timing(lambda: matmul @ matmul, repeats=9).median
    assert rate < 2 * peak, "no ordinary matmul is far above the peak"


def test_bad_input_says_what_to_do():
    for functions, repeats in (({}, 3), ({"a": int}, 0)):
        with pytest.raises(InputError, match="try repeats=11"):
            compare(functions, repeats)
