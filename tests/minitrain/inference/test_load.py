"""Requests as a Poisson process with the lengths asked for; goodput by hand."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest

from minitrain.errors import InputError
from minitrain.inference.engine.request import Times
from minitrain.inference.load import (
    Outcome,
    Target,
    arrivals,
    asks,
    lengths_in,
    lengths_of_trace,
    summary,
)


def test_gaps_are_exponential():
    times = arrivals(20_001, 50.0, seed=1)
    gaps = sorted(after - before for before, after in pairwise(times))
    mean = sum(gaps) / len(gaps)
    assert times[0] == 0 and abs(mean * 50 - 1) < 0.03
    largest = max(  # Kolmogorov-Smirnov; evenly spaced or uniform gaps are 0.3 and more away
        abs((place + 1) / len(gaps) - (1 - math.exp(-50 * gap))) for place, gap in enumerate(gaps)
    )
    assert largest < 1.63 / math.sqrt(len(gaps))


def test_rates_scale_the_same_arrivals_and_inf_is_at_once():
    slow, fast = arrivals(50, 1.0, 3), arrivals(50, 4.0, 3)
    assert fast == pytest.approx([at / 4 for at in slow])
    assert arrivals(5, math.inf, 3) == [0.0] * 5 and arrivals(50, 1.0, 4) != slow


def test_prompts_begin_alike_and_go_on_differently():
    lengths = lengths_in(60, (4, 9), (1, 3), seed=0)
    assert {p for p, _ in lengths} == set(range(4, 10)) and {n for _, n in lengths} == {1, 2, 3}
    made = asks(lengths, 2.0, vocabulary=300, seed=0, shared=16, prefixes=3)
    beginnings = Counter(one.prompt[:16] for one in made)
    assert len(beginnings) == 3 and min(beginnings.values()) > 8
    assert [(len(one.prompt) - 16, one.new_tokens) for one in made] == lengths
    assert len({one.prompt[16:] for one in made}) == 60
    assert {token for one in made for token in one.prompt} <= set(range(3, 300))


def test_the_same_seed_asks_the_same_and_another_rate_other_tokens():
    lengths = lengths_in(10, (16, 32), (4, 4), seed=0)
    first, again, faster = (asks(lengths, rate, 300, seed=7, shared=16) for rate in (1.0, 1.0, 2.0))
    assert first == again
    prompts = {one.prompt[:16] for one in first} & {one.prompt[:16] for one in faster}
    assert not prompts, "what one rate asked is in the server's prefix cache for the next"


def test_a_trace_is_read_in_its_order_and_begins_again(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,374,44\n1,396.0,109\n2,10,0\n")
    assert lengths_of_trace(file, 5) == [(374, 44), (396, 109), (10, 1), (374, 44), (396, 109)]
    assert lengths_of_trace(file, 2, scale=0.1) == [(37, 4), (40, 11)]
    file.write_text("new_tokens,prompt_tokens\n7,3\n")
    assert lengths_of_trace(file, 1) == [(3, 7)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prompt_tokens,answer\n1,2\n", "no column for the answer's tokens: name it new_tokens"),
        ("prompt_tokens,new_tokens\n", "has no row below its head"),
        ("prompt_tokens,new_tokens\n1,2\n3,x\n", "line 3: 'x' is no number of tokens"),
        ("prompt_tokens,new_tokens\n1\n", "line 2: None is no number of tokens"),
        ("prompt_tokens,new_tokens\n1,-4\n", "'-4' is no number of tokens"),
        ("", "has no column for the prompt's tokens"),
    ],
)
def test_a_trace_that_is_none(tmp_path, text, said):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        lengths_of_trace(file, 4)


TARGET = Target(first_token=1.0, per_token=0.1)


def told(
    arrived: float, *tokens: float, of: int | None = None, failed: str | None = None
) -> Outcome:
    times = Times(arrived, arrived, list(tokens), tokens[-1] if tokens else arrived + 1)
    return Outcome(times, 10, of or len(tokens), failed)


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
    lost = summary([told(0, failed="no"), told(1, failed="no")], TARGET)
    assert lost.met == 0 and lost.tokens_per_second == 0 and lost.failed == {"no": 2}
    assert math.isnan(lost.latency.first_token[50])
    one = summary(all_, TARGET)
    assert one.seconds == pytest.approx(3.05) and one.requests == 4 and one.met == 2
    assert one.failed == {"429: full": 1}
    assert one.goodput == pytest.approx(2 / 3.05)
    assert one.new_tokens == 5 and one.prompt_tokens == 30  # of the complete ones
    assert one.latency.first_token[50] == pytest.approx(0.9)
    assert one.latency.between_tokens[50] == pytest.approx(0.075)
