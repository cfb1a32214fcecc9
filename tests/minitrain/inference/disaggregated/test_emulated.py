"""On an emulated clock: seconds that a calculation by hand gives, and messages in their order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minitrain.inference.disaggregated.emulated import Emulation
from minitrain.inference.disaggregated.serving import Pool, serve_apart, serve_together
from minitrain.inference.engine.engine import Engine
from minitrain.inference.load import Ask, asks, lengths_in
from minitrain.inference.parameters import SamplingParameters
from minitrain.measure.parameters import parameter_count
from minitrain.model.config import ModelConfig, preset
from minitrain.model.transformer import build
from minitrain.network.fabric import h100_nvlink
from minitrain.network.links import Link, LinkModel

SEVEN = preset("llama2-7b")
EMULATION = Emulation(SEVEN, h100_nvlink())
POOL = Pool(num_blocks=64, block_size=16, budget=512, max_running=16)
KV = 2 * 32 * 32 * 128 * 2  # bytes of a token: layers, heads, their size, in 16 bits


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build(ModelConfig(61, 16, 1, heads=2, kv_heads=1, ffn_size=16, max_length=512))


def step(tokens: int, start: int) -> float:
    """Seconds of a 7B model's step with `tokens` of one text, after `start`, on an H100."""
    weights = parameter_count(SEVEN)
    read = sum(start + place + 1 for place in range(tokens))
    flops = 2 * weights * tokens + 4 * 32 * 32 * 128 * read
    return max(flops / 794.5e12, (2 * weights + KV * (start + tokens)) / 3.35e12)


def test_one_request_takes_what_a_roofline_and_a_link_say(model):
    served = serve_apart(model, [Ask(0.25, (5,) * 480, 3)], pool=POOL, emulation=EMULATION)
    (times,) = [one.times.tokens for one in served.outcomes]
    link = EMULATION.fabric.inside.link("send")
    header, pages = (link.alpha, link.alpha + 480 * KV * link.beta)
    assert step(480, 0) > 2 * step(1, 480), "a prompt is bound by the matmuls"
    first = 0.25 + step(480, 0)
    second = first + header + pages + step(1, 480)
    assert times == pytest.approx([first, second, second + step(1, 481)], rel=1e-4)
    (both,) = serve_together(
        model, [Ask(0.25, (5,) * 480, 3)], 1, 512, POOL, emulation=EMULATION
    ).outcomes
    assert both.times.tokens == pytest.approx(
        [first, first + step(1, 480), first + step(1, 480) + step(1, 481)], rel=1e-6
    )


def test_a_chunked_prompt_is_sent_as_it_grows(model):
    """All but the last chunk's pages are there when the first token is."""
    slow = replace(EMULATION.fabric, inside=LinkModel(Link(1e-6, 1 / 30e9)))
    emulation, asked = replace(EMULATION, fabric=slow), [Ask(0.0, (5,) * 480, 3)]
    gaps = {}
    for budget in (512, 128):
        served = serve_apart(model, asked, pool=replace(POOL, budget=budget), emulation=emulation)
        gaps[budget] = served.outcomes[0].times.between_tokens_seconds[0]
        assert served.page_bytes == 30 * 16 * 2 * 8 * 4  # pages of 16 keys and values of 8 floats
    assert gaps[128] < 0.5 * gaps[512]


def test_eight_ranks_tell_what_one_engine_tells_and_twice_the_same(model):
    wanted = asks(lengths_in(24, (40, 300), (2, 20), 0), 300.0, 61, seed=0)
    parameters = [SamplingParameters(ask.new_tokens) for ask in wanted]
    want = [a.tokens for a in Engine(model, 800).generate([a.prompt for a in wanted], parameters)]
    one, two = (serve_apart(model, wanted, 4, 4, POOL, emulation=EMULATION) for _ in range(2))
    assert one.answers == want
    for a, b in zip(one.outcomes, two.outcomes):  # no real time is left on the clock
        assert a.times.tokens == pytest.approx(b.times.tokens, abs=1e-7)
        assert a.times.tokens == sorted(a.times.tokens)


def test_messages_are_taken_in_the_order_in_which_they_begin(model):
    """Two ranks read, one goes on. The second one's prompt is short, and comes when the first one's
    long prompt has begun: it is answered before that is read, whichever process really was first."""
    emulation = replace(EMULATION, memory_bandwidth=1e15)
    wanted = [Ask(0.0, (5,) * 480, 3), Ask(0.001, (6,) * 32, 3)]
    served = serve_apart(model, wanted, 2, 1, POOL, emulation=emulation)
    long, short = (one.times.tokens for one in served.outcomes)
    assert short[-1] < long[0]
    (alone,) = serve_apart(model, wanted[1:], 1, 1, POOL, emulation=emulation).outcomes
    assert short == pytest.approx(alone.times.tokens, rel=1e-6)
