"""Goodput by hand: who was served in time, in how many seconds."""

from __future__ import annotations

import math

import pytest

from minitrain.inference.engine.request import Times
from minitrain.inference.load import Target, Told, summary

TARGET = Target(first_token=1.0, per_token=0.1)


def told(arrived: float, *tokens: float, of: int | None = None, failed: str | None = None) -> Told:
    times = Times(arrived, arrived, list(tokens), tokens[-1] if tokens else arrived + 1)
    return Told(times, 10, of or len(tokens), failed)


@pytest.mark.parametrize(
    ("one", "met"),
    [
        (told(5, 6.0, 6.09, 6.18), True),
        (told(5, 6.01, 6.1), False),  # the first token late
        (told(5, 5.5, 5.55, 5.8), False),  # slow in the mean
        (told(5, 5.5, 5.68, 5.69), True),  # one slow gap, and in the mean in time
        (told(5, 5.5, 5.8, of=5), True),  # four tokens more in 0.3 s, in one piece
        (told(5, 5.9), True),  # one token has no pace
        (told(5, 5.1, 5.2, failed="500: no"), False),
        (told(5), False),
    ],
)
def test_who_is_served_in_time(one, met):
    assert one.met(TARGET) is met


def test_a_summary():
    all_ = [told(0, 0.5, 0.6), told(1, 3.0, 3.05), told(2, 2.5, failed="429: full"), told(2, 2.9)]
    one = summary(all_, TARGET)
    assert one.seconds == pytest.approx(3.05) and one.requests == 4 and one.met == 2
    assert one.failed == {"429: full": 1}
    assert one.goodput == pytest.approx(2 / 3.05)
    assert one.new_tokens == 5 and one.prompt_tokens == 30  # of the complete ones
    assert one.latency.first_token[50] == pytest.approx(0.9)
    assert one.latency.between_tokens[50] == pytest.approx(0.075)


def test_where_all_failed_there_is_nothing_to_wait_for():
    one = summary([told(0, failed="no"), told(1, failed="no")], TARGET)
    assert one.met == 0 and one.tokens_per_second == 0 and one.failed == {"no": 2}
    assert math.isnan(one.latency.first_token[50])
