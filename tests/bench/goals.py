"""The engine's goals on the workload of the inference bench, each as its row's peer.

    throughput   4 times that of static batches of 8
    KV memory    at most 4% of it unused, with blocks of 16, and of 4
    long prompt  in chunks, at most a third of the pause (p99) of an unchunked prefill

The goal of not being slower than vLLM has its own rows in inference.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from minitrain.bench.case import OURS, PEER, Case, once
from minitrain.bench.serving import BLOCK, Pairs, Workload, by_engine
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.measure.clock import Comparison, Timing
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer

TIMES, WASTE, PAUSE = 4, 0.04, 1 / 3
SMALL_BLOCK = 4
TIMES_REASON = (
    "static batches make 3.8 passes of the weights for one of ours, and ours have four times the "
    "rows, each of which costs a CPU some time of its own"
)
WASTE_REASON = (
    "a text leaves half a block empty in the mean, and these have about 100 tokens: of 16 that is "
    "8%; blocks of 4 leave a quarter of it"
)
BLOCK_REASON = "four times as many pages are copied one by one for attention"


def static_goal(pairs: Pairs, peer: str) -> Case:
    measure = partial(shortened, pairs.seconds, 1 / TIMES)
    title = f"goal: {TIMES} times as fast, {len(pairs.work.prompts)} requests, mixed"
    return Case(title, f"1/{TIMES} of the seconds of {peer}", measure, TIMES_REASON)


def pause_goal(measure: Callable[[], Comparison], why: str) -> Case:
    return Case(
        "goal: a third of the pause, long prompts in chunks",
        "1/3 of our engine's with whole prompts at once",
        partial(shortened, measure, PAUSE),
        why,
    )


def memory_goals(model: Transformer, work: Workload, repeats: int) -> list[Case]:
    small = Pairs(by_engine(model, SMALL_BLOCK), by_engine(model), work, repeats)
    return [
        *(
            Case(
                f"goal: KV memory for no token, blocks of {size}",
                f"{WASTE:.0%} of what is held",
                partial(held_for_nothing, model, work, size),
                WASTE_REASON,
                "bytes",
            )
            for size in (BLOCK, SMALL_BLOCK)
        ),
        Case(
            f"{len(work.prompts)} requests, mixed, blocks of {SMALL_BLOCK}",
            f"our engine, blocks of {BLOCK}",
            small.seconds,
            BLOCK_REASON,
        ),
    ]


def shortened(measure: Callable[[], Comparison], share: float) -> Comparison:
    """Compares against `share` of the peer's cost."""
    timings = measure().timings
    wanted = Timing(tuple(share * cost for cost in timings[PEER].seconds))
    return Comparison({OURS: timings[OURS], PEER: wanted})


def held_for_nothing(model: Transformer, work: Workload, size: int) -> Comparison:
    """Unused bytes, mean over steps, against the goal's share of all held bytes."""
    engine = Engine(model, work.blocks_of(size), size)
    engine.generate(work.prompts, [SamplingParameters(n) for n in work.new])
    steps, place = engine.steps, place_bytes(model.config, model.embed.weight.itemsize)
    empty = sum(step.empty_places for step in steps) * place / len(steps)
    held = sum(step.bytes_used for step in steps) / len(steps)
    return once({OURS: round(empty), PEER: round(WASTE * held)})


def place_bytes(config: ModelConfig, itemsize: int = 4) -> int:
    """Bytes of one token's keys and values in all layers."""
    return 2 * config.layers * config.kv_heads * config.head_size * itemsize
