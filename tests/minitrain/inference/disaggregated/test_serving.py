"""Prefill apart from decode on real ranks: what is told, what is sent, and who died."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.inference.disaggregated.emulated import Emulation, page_bytes
from minitrain.inference.disaggregated.serving import Pool, serve_apart, serve_together
from minitrain.inference.engine.engine import Engine
from minitrain.inference.load import Ask, asks, lengths_in
from minitrain.inference.parameters import SamplingParameters
from minitrain.measure.parameters import parameter_count
from minitrain.model.config import ModelConfig, preset
from minitrain.model.transformer import build
from minitrain.network.fabric import h100_nvlink
from minitrain.network.links import Link, LinkModel
from minitrain.ranks.errors import RankDied

CONFIG = ModelConfig(61, 32, 2, heads=4, kv_heads=2, ffn_size=40, max_length=128)
ASKS = asks(lengths_in(14, (3, 40), (1, 10), seed=0), 200.0, 61, seed=0, shared=9, prefixes=2)
POOL = Pool(num_blocks=64, block_size=8, budget=48, max_running=6)
TIGHT = Pool(num_blocks=9, block_size=8, budget=16, max_running=5)  # chunks, and preemptions
DRAWN = SamplingParameters(temperature=1.5, top_p=0.95, seed=5)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build(CONFIG, dtype=torch.float64)


@pytest.fixture(scope="module")
def alone(model):
    """What one engine tells them, greedy and drawn."""

    def tells(sampling: SamplingParameters) -> list[list[int]]:
        own = [
            replace(sampling, max_new_tokens=ask.new_tokens, seed=sampling.seed + number)
            for number, ask in enumerate(ASKS)
        ]
        answers = Engine(model, 200, 8).generate([ask.prompt for ask in ASKS], own)
        return [answer.tokens for answer in answers]

    return {sampling: tells(sampling) for sampling in (SamplingParameters(), DRAWN)}


@pytest.mark.parametrize(
    ("ranks", "pool", "sampling"),
    [
        ((1, 1), POOL, SamplingParameters()),
        ((1, 1), TIGHT, SamplingParameters()),
        ((1, 1), TIGHT, DRAWN),
        ((2, 2), POOL, DRAWN),
    ],
    ids=["greedy", "tight", "tight and drawn", "four ranks"],
)
def test_apart_tells_what_one_engine_tells(model, alone, ranks, pool, sampling):
    served = serve_apart(model, ASKS, *ranks, pool, sampling)
    assert served.answers == alone[sampling]
    sent = sum(-(-len(ask.prompt) // 8) for ask in ASKS if ask.new_tokens > 1)
    assert served.page_bytes == sent * page_bytes(model, 8)
    for ask, one in zip(ASKS, served.outcomes):
        assert one.failed is None and one.tokens == ask.new_tokens == len(one.times.tokens)
        assert ask.at == one.times.arrived < one.times.tokens[0]
        assert one.times.tokens == sorted(one.times.tokens)


def test_a_window_is_all_that_goes_over(model):
    windowed = build(replace(CONFIG, window=9), dtype=torch.float64)
    own = [SamplingParameters(ask.new_tokens) for ask in ASKS]
    answers = Engine(windowed, 200, 4).generate([ask.prompt for ask in ASKS], own)
    served = serve_apart(windowed, ASKS, pool=replace(POOL, block_size=4))
    assert served.answers == [answer.tokens for answer in answers]
    whole = sum(-(-len(ask.prompt) // 4) for ask in ASKS if ask.new_tokens > 1)
    assert 0 < served.page_bytes < 0.9 * whole * page_bytes(windowed, 4)


@pytest.mark.parametrize("chunk", [6, 64])
def test_together_tells_the_same(model, alone, chunk):
    served = serve_together(model, ASKS, 2, chunk, POOL)
    assert served.answers == alone[SamplingParameters()] and served.page_bytes == 0


def test_answers_stand_in_the_order_of_what_was_asked(model, alone):
    later = [replace(ask, at=0.1 - ask.at) for ask in ASKS]  # the last one comes first
    for served in (serve_apart(model, later, pool=POOL), serve_together(model, later, pool=POOL)):
        assert served.answers == alone[SamplingParameters()]
        assert [one.times.arrived for one in served.outcomes] == [ask.at for ask in later]


class DiesAt(nn.Module):
    """A last norm that ends its process when a step has so many tokens."""

    def __init__(self, norm: nn.Module, tokens: int) -> None:
        super().__init__()
        self.norm, self.tokens = norm, tokens

    def forward(self, x):
        if len(x) == self.tokens:
            os._exit(3)
        return self.norm(x)


@pytest.mark.parametrize(("tokens", "rank"), [(23, 0), (1, 1)], ids=["prefill", "decode"])
def test_a_rank_that_dies_is_named(model, tokens, rank):
    dying = build(CONFIG, dtype=torch.float64)
    dying.norm = DiesAt(dying.norm, tokens)
    with pytest.raises(RankDied, match=f"^rank {rank}: its process exited"):
        serve_apart(dying, [Ask(0.0, (5,) * 23, 4)], pool=POOL, timeout=30)


@pytest.mark.parametrize(
    ("asked", "more", "said"),
    [
        ([], {}, "nothing is asked"),
        ([Ask(0.0, (5,) * 70, 10)], {"pool": TIGHT}, "need 10 blocks, and the pool has 9"),
        ([Ask(0.0, (5,) * 120, 10)], {}, "longer than the 128 tokens"),
        ([Ask(0.0, (99,), 2)], {}, "token 99 is none of the model's"),
        ([Ask(0.0, (5,), 2)], {"prefill_ranks": 0}, "prefill_ranks is 0"),
    ],
)
def test_what_cannot_be_served_is_told_in_a_sentence(model, asked, more, said):
    with pytest.raises(InputError, match=said):
        serve_apart(model, asked, **more)


# On an emulated clock: seconds that a calculation by hand gives, and messages in their order


SEVEN = preset("llama2-7b")
EMULATION = Emulation(SEVEN, h100_nvlink())
FAST_POOL = Pool(num_blocks=64, block_size=16, budget=512, max_running=16)
KV = 2 * 32 * 32 * 128 * 2  # bytes of a token: layers, heads, their size, in 16 bits


@pytest.fixture(scope="module")
def tiny():
    return build(ModelConfig(61, 16, 1, heads=2, kv_heads=1, ffn_size=16, max_length=512))


def step(tokens: int, start: int) -> float:
    """Seconds of a 7B model's step with `tokens` of one text, after `start`, on an H100."""
    weights = parameter_count(SEVEN)
    read = sum(start + place + 1 for place in range(tokens))
    flops = 2 * weights * tokens + 4 * 32 * 32 * 128 * read
    return max(flops / 794.5e12, (2 * weights + KV * (start + tokens)) / 3.35e12)


def test_one_request_takes_what_a_roofline_and_a_link_say(tiny):
    served = serve_apart(tiny, [Ask(0.25, (5,) * 480, 3)], pool=FAST_POOL, emulation=EMULATION)
    (times,) = [one.times.tokens for one in served.outcomes]
    link = EMULATION.fabric.inside.link("send")
    header, pages = (link.alpha, link.alpha + 480 * KV * link.beta)
    assert step(480, 0) > 2 * step(1, 480), "a prompt is bound by the matmuls"
    first = 0.25 + step(480, 0)
    second = first + header + pages + step(1, 480)
    assert times == pytest.approx([first, second, second + step(1, 481)], rel=1e-4)
    (both,) = serve_together(
        tiny, [Ask(0.25, (5,) * 480, 3)], 1, 512, FAST_POOL, emulation=EMULATION
    ).outcomes
    assert both.times.tokens == pytest.approx(
        [first, first + step(1, 480), first + step(1, 480) + step(1, 481)], rel=1e-6
    )


def test_a_chunked_prompt_is_sent_as_it_grows(tiny):
    """All but the last chunk's pages are there when the first token is."""
    slow = replace(EMULATION.fabric, inside=LinkModel(Link(1e-6, 1 / 30e9)))
    emulation, asked = replace(EMULATION, fabric=slow), [Ask(0.0, (5,) * 480, 3)]
    gaps = {}
    for budget in (512, 128):
        served = serve_apart(
            tiny, asked, pool=replace(FAST_POOL, budget=budget), emulation=emulation
        )
        gaps[budget] = served.outcomes[0].times.between_tokens_seconds[0]
        assert served.page_bytes == 30 * 16 * 2 * 8 * 4  # pages of 16 keys and values of 8 floats
    assert gaps[128] < 0.5 * gaps[512]


def test_eight_ranks_tell_what_one_engine_tells_and_twice_the_same(tiny):
    wanted = asks(lengths_in(24, (40, 300), (2, 20), 0), 300.0, 61, seed=0)
    parameters = [SamplingParameters(ask.new_tokens) for ask in wanted]
    want = [a.tokens for a in Engine(tiny, 800).generate([a.prompt for a in wanted], parameters)]
    one, two = (serve_apart(tiny, wanted, 4, 4, FAST_POOL, emulation=EMULATION) for _ in range(2))
    assert one.answers == want
    for a, b in zip(one.outcomes, two.outcomes):  # no real time is left on the clock
        assert a.times.tokens == pytest.approx(b.times.tokens, abs=1e-7)
        assert a.times.tokens == sorted(a.times.tokens)


def test_messages_are_taken_in_the_order_in_which_they_begin(tiny):
    """Two ranks read, one goes on. The second one's prompt is short, and comes when the first one's
    long prompt has begun: it is answered before that is read, whichever process really was first."""
    emulation = replace(EMULATION, memory_bandwidth=1e15)
    wanted = [Ask(0.0, (5,) * 480, 3), Ask(0.001, (6,) * 32, 3)]
    served = serve_apart(tiny, wanted, 2, 1, FAST_POOL, emulation=emulation)
    long, short = (one.times.tokens for one in served.outcomes)
    assert short[-1] < long[0]
    (alone,) = serve_apart(tiny, wanted[1:], 1, 1, FAST_POOL, emulation=emulation).outcomes
    assert short == pytest.approx(alone.times.tokens, rel=1e-6)
