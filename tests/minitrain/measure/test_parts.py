from __future__ import annotations

import itertools

import pytest

from minitrain.measure.parts import Parts, Span


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
