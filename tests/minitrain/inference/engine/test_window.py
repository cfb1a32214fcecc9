"""A model with a sliding window gives back the blocks that have left it."""

from __future__ import annotations

import pytest
import torch

from minitrain.errors import InputError
from minitrain.inference.cache.blocks import GONE, BlockManager
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.sampling import generate
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

from .texts import prompts

WINDOW = 6
CONFIG = ModelConfig(61, 32, 2, heads=4, kv_heads=2, ffn_size=40, max_length=256, window=WINDOW)
MODEL = build(CONFIG, dtype=torch.float64)
LONG = [(7 * place) % 58 + 3 for place in range(60)]


def alone(prompt: list[int], new: int) -> list[int]:
    """By whole texts, without a cache."""
    return generate(MODEL, prompt, new, temperature=0)


def test_a_text_of_any_length_holds_a_windows_blocks():
    engine = Engine(MODEL, num_blocks=5, block_size=4, budget=8, max_running=1)
    told = engine.generate([LONG], SamplingParameters(40))[0].tokens
    assert told == alone(LONG, 40)
    # the window's 5 tokens before a chunk, the chunk, and a block for where they begin
    assert max(step.blocks_used for step in engine.steps) <= 5
    answering = [step for step in engine.steps if step.tokens == 1]
    assert max(step.blocks_used for step in answering) <= 3
    page = engine.runner.cache.page_bytes
    assert page == 2 * 2 * 2 * 4 * 8 * 8  # keys and values, layers, heads, places, C, float64
    assert all(step.bytes_used == step.blocks_used * page for step in engine.steps)
    assert all(0 <= step.empty_places < 4 for step in answering[:-1])
    assert engine.scheduler.blocks.left == (len(LONG) + 39 - WINDOW + 1) // 4
    assert engine.scheduler.blocks.used == 0


@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": 60},
        {"num_blocks": 300, "block_size": 1},
        {"num_blocks": 60, "block_size": 5, "budget": 9},
        {"num_blocks": 8, "budget": 9},
    ],
    ids=["roomy", "pages of one token", "chunks", "preempted"],
)
def test_answers_are_those_of_whole_texts(options):
    texts = [*prompts(4), LONG[:20], LONG[:20], LONG[:31]]
    engine = Engine(MODEL, **{"block_size": 4, "max_running": 5, **options})
    found = [answer.tokens for answer in engine.generate(texts, SamplingParameters(10))]
    assert found == [alone(text, 10) for text in texts]
    again = [answer.tokens for answer in engine.generate(texts, SamplingParameters(10))]
    assert again == found
    assert engine.scheduler.blocks.left > 0 and engine.scheduler.blocks.used == 0
    assert (sum(step.preemptions for step in engine.steps) > 0) == (options["num_blocks"] == 8)
    assert engine.scheduler.blocks.hit > 0 or options["num_blocks"] == 8


def test_a_known_prefix_is_held_only_where_the_window_reaches():
    manager = BlockManager(20, 4, window=WINDOW)
    first, _ = manager.admit(LONG[:33], None, 64)
    manager.commit(first, LONG[:33], None, 33)
    manager.slide(first, 33)
    assert first.blocks[:7] == [GONE] * 7 and first.held == 2 and manager.left == 7
    second, computed = manager.admit(LONG[:33], None, 64)
    assert computed == 32
    assert second.blocks[:6] == [GONE] * 6 and second.held == 3  # places 27 to 31, and 32's own
    assert second.blocks[7] == first.blocks[7]
    assert manager.blocks[first.blocks[7]].ref_count == 2
    manager.release(first)
    assert manager.blocks[second.blocks[7]].ref_count == 1
    manager.release(second)
    assert manager.used == 0 and len(manager.free) == 20


def test_a_fork_whose_beginning_is_gone_holds_nothing():
    manager = BlockManager(20, 4, window=WINDOW)
    table, _ = manager.admit(LONG[:33], None, 64)
    manager.slide(table, 33)
    assert manager.fork(table, 12) is None and manager.fork(table, 33).held == 2


def test_a_chunk_that_no_pool_could_hold_is_refused():
    engine = Engine(MODEL, num_blocks=4, block_size=4, budget=8, max_running=1)
    with pytest.raises(InputError, match="need 5 blocks, and the pool has 4"):
        engine.add(LONG, SamplingParameters(4))
