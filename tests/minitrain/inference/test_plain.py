"""Lab e09's plain versions do what the package's own do, and serve the same answers in every mode."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from minitrain.errors import InputError
from minitrain.inference.plain.given import held_bytes
from minitrain.inference.plain.loop import Request, Server, generate_batch
from minitrain.inference.plain.reference import BlockManager, Pool, QuantizedKV, sample, schedule
from minitrain.inference.sampling import generate, next_token_probabilities
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

CONFIG = ModelConfig(61, 16, 2, 4, 2, 24)


@pytest.fixture(scope="module")
def model():
    return build(CONFIG, seed=3).double()


def prompts(count=9, seed=5):
    draw = random.Random(seed)
    shared = [draw.randrange(61) for _ in range(11)]
    return [shared[: draw.randrange(12)] + [draw.randrange(61) for _ in range(draw.randrange(1, 9))]
            for _ in range(count)]  # fmt: skip


def test_tokens_are_drawn_by_the_packages_probabilities():
    logits = torch.randn(7, generator=torch.Generator().manual_seed(0))
    ask = [Request([1], 1, 1.3, 5, 0.6, seed=seed) for seed in range(3000)]
    counts = Counter(sample(logits.expand(3000, -1), ask))
    shares = torch.tensor([counts[token] / 3000 for token in range(7)])
    want = next_token_probabilities(logits, 1.3, 5, 0.6)
    assert torch.equal(shares > 0, want > 0)
    assert (shares - want).abs().max() < 0.04


MODES = {
    "one by one": {"most_running": 1},
    "batched": {},
    "in chunks": {"budget": 5},
    "preempted": {"num_blocks": 7},
    "preempted, in chunks": {"num_blocks": 7, "budget": 6},
    "pages of one": {"num_blocks": 400, "size": 1},
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_same_answers(model, mode):
    options = {"num_blocks": 90, "size": 4, **MODES[mode]}
    manager = BlockManager(Pool(options.pop("num_blocks")), options.pop("size"))
    server = Server(model, manager, schedule, sample, **options)
    asked = [Request(prompt, 7) for prompt in prompts()]
    server.add(*asked)
    server.run()
    for request in asked:
        assert request.told == generate(model, request.prompt, 7, temperature=0)
    assert (sum(r.preemptions for r in asked) > 3) == ("preempted" in mode)
    assert sum(r.reused for r in asked) > 0 or MODES[mode].get("size") or not MODES[mode]
    assert manager.pool.available() == len(manager.pool.refs)


def test_a_static_batch_gives_them_too(model):
    wanted = [7, 2, 5, 1, 7, 3, 4, 6, 7]
    told, times = generate_batch(model, prompts(), wanted)
    assert told == [generate(model, p, n, temperature=0) for p, n in zip(prompts(), wanted)]
    assert [len(one) for one in times] == wanted


def test_a_text_that_no_pool_holds_is_refused(model):
    server = Server(model, BlockManager(Pool(3), 4), schedule, sample)
    with pytest.raises(InputError, match="needs 4 blocks of 4, and the pool has 3"):
        server.add(Request([1] * 10, 4))


def test_bytes_count_each_storage_once_and_whole():
    kept = QuantizedKV()
    kept.new = torch.zeros(1, 4, 5), torch.zeros(1, 100, 5)[:, :2]
    assert held_bytes(kept) == 4 * (20 + 500)
    assert held_bytes([kept.new], {"again": kept.new[0]}, "words") == held_bytes(kept)


def test_a_schedule_that_does_nothing_is_named(model):
    server = Server(model, BlockManager(Pool(3), 4), lambda *_: ([], []), sample)
    server.add(Request([1, 2], 3))
    with pytest.raises(InputError, match="a step without work, while requests wait"):
        server.step()
