"""The inference engine against `transformers`, and each of its parts against what it replaces.

stories15M, or random weights of its shape if it was not fetched, serves 32 requests of mixed
lengths, then 32 with a shared prefix. Both contenders must give the same answers, token for token.
A static batch waits for its longest answer; batches run one after another. vLLM is a contender
where `make bench-vllm` has made its environment.

The possible gain is known: batches of 8 need 482 forward passes for the mixed workload, ours 128,
the longest answer's tokens. So at equal cost per pass it is at most 3.8 times as fast, and its
passes are larger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import torch
import torch.nn.functional as F

import minitrain
from minitrain.bench.case import OURS, PEER, TORCH, Case, once, peer_module
from minitrain.bench.goals import memory_goals, pause_goal, place_bytes, static_goal
from minitrain.bench.serving import (
    BLOCK,
    CHUNK,
    SIZE,
    Pairs,
    Served,
    Workload,
    beside_long_prompts,
    by_engine,
    continuously,
    in_batches,
)
from minitrain.bench.training import as_llama
from minitrain.bench.vllm import Vllm, vllm_version
from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.inference.cache.paged import PagedCache, Part, Tile, paged_attention
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.measure.clock import Comparison, compare
from minitrain.model.config import ModelConfig, preset
from minitrain.model.hub.llama2c import load_llama2c
from minitrain.model.transformer import Transformer, build

SHARED = 48  # shared prefix tokens of the second workload's prompts
WINDOW = 48  # tokens
SERVING_REASON = (
    "a few long answers at the end run alone, and both then read all weights for each token"
)
VLLM_REASON = (
    "a profile gives 40% of our seconds to the matrix products, 26% to copying pages, which its "
    "kernel, in C++, reads where they are, 10% to attention, the rest to small operations"
)
LATENCY_REASON = (
    "a step computes tokens of every request that is here, so it takes longer than one of a small "
    "batch: the others do not wait for it in a queue instead"
)
CHUNK_REASON = "the long prompts are too short to hold a step up on this machine"
PAGED_REASON = "pages are read into a buffer first, which the dense rows are spared"
PEERS = ("sequential", "static", "continuous", "vllm")


def cases(
    repeats: int = 3,
    requests: int = 32,
    shape: ModelConfig | None = None,
    peers: Sequence[str] = PEERS,
) -> list[Case]:
    model = trained() if shape is None else build(shape)
    version = peer_module("inference", "transformers").__version__
    llama = as_llama(model).eval()
    contenders = {
        "sequential": (in_batches(llama, 1), f"generate of transformers {version}, one by one"),
        "static": (in_batches(llama, SIZE), f"generate of transformers {version}, batches of 8"),
        "continuous": (continuously(llama), f"generate_batch of transformers {version}"),
    }
    if vllm_version() is not None:
        contenders["vllm"] = (Vllm(model), f"vLLM {vllm_version()}, its build for CPUs")
    vocabulary, ours = model.config.vocab_size, by_engine(model)
    found: list[Case] = []
    for kind, shared in (("mixed", 0), ("shared prefix", SHARED)):
        work = Workload.mixed(requests, vocabulary, shared)
        title = f"{requests} requests, {kind}, {sum(work.new)} tokens"
        for peer in (peer for peer in peers if peer in contenders):
            serve, name = contenders[peer]
            pairs = Pairs(ours, serve, work, repeats)
            why = VLLM_REASON if peer == "vllm" else SERVING_REASON
            found.append(Case(title, name, pairs.seconds, why))
            if peer == "static" and not shared:
                found.append(static_goal(pairs, name))
            if not shared:
                found += latency_cases(pairs, name, why if peer == "vllm" else LATENCY_REASON)
    mixed = Workload.mixed(requests, vocabulary)
    return found + parts(model, mixed, version, repeats) + memory_goals(model, mixed, repeats)


def parts(model: Transformer, mixed: Workload, version: str, repeats: int) -> list[Case]:
    """Seconds saved by each part of the engine; `version` of transformers."""
    config = model.config
    attended = partial(paged_measured, config, 32, 128, 5 * repeats)
    paused = lru_cache(partial(beside_long_prompts, model, repeats))  # its goal uses it too
    return [
        Case(
            "passes of the model, mixed",
            f"batches of 8 (transformers {version})",
            partial(passes, model, mixed),
            "one batch holds them all",
            "passes",
        ),
        Case(
            "KV memory unused in a step, mixed",
            f"rows as long as a batch's longest, of 8 (transformers {version})",
            partial(unused_bytes, model, mixed),
            "",
            "bytes",
        ),
        Case(
            f"KV memory at most, mixed, a window of {WINDOW}",
            f"minitrain {minitrain.__version__}, the same model without a window",
            partial(windowed_bytes, config, mixed),
            "texts are no longer than the window",
            "bytes",
        ),
        Case(
            f"longest gaps between tokens (p99), long prompts in chunks of {CHUNK}",
            "our engine, whole prompts at once (budget 4096)",
            paused,
            CHUNK_REASON,
        ),
        pause_goal(paused, CHUNK_REASON),
        Case(
            "paged attention, 32 texts of 128 tokens",
            f"scaled_dot_product_attention of {TORCH}, dense",
            attended,
            PAGED_REASON,
        ),
    ]


def trained() -> Transformer:
    if is_cached("stories15M"):
        return load_llama2c(fetch("stories15M", progress=False))[0]
    return build(preset("stories15M"))


def latency_cases(pairs: Pairs, peer: str, why: str) -> list[Case]:
    """Percentiles of the time to first token, and between tokens."""

    def first(percentile: int) -> Callable[[Served], float]:
        return lambda served: served.latency.first_token[percentile]

    def between(percentile: int) -> Callable[[Served], float]:
        return lambda served: served.latency.between_tokens[percentile]

    costs = [
        (f"{what}, p{percentile}", cost(percentile))
        for what, cost in (("first token", first), ("between tokens", between))
        for percentile in (50, 99)
    ]
    return [Case(n, peer, partial(pairs.comparison, c), why) for n, c in costs]


def unused_bytes(model: Transformer, work: Workload) -> Comparison:
    """Allocated but unused token slots of running requests, mean over steps."""
    place = place_bytes(model.config, model.embed.weight.itemsize)
    engine = Engine(model, work.blocks, BLOCK)
    engine.generate(work.prompts, [SamplingParameters(n) for n in work.new])
    ours = [step.empty_places for step in engine.steps]
    theirs = [
        sum(width + step - (len(p) + step if step < n else 0) for p, n in batch)
        for batch, width in batches(work)
        for step in range(max(n for _, n in batch))
    ]
    means = {OURS: sum(ours) / len(ours), PEER: sum(theirs) / len(theirs)}
    return once({who: round(mean * place) for who, mean in means.items()})


def passes(model: Transformer, work: Workload) -> Comparison:
    """The number of times that all weights are read by each contender."""
    engine = Engine(model, work.blocks, BLOCK)
    engine.generate(work.prompts, [SamplingParameters(n) for n in work.new])
    theirs = sum(max(n for _, n in batch) for batch, _ in batches(work))
    return once({OURS: len(engine.steps), PEER: theirs})


def windowed_bytes(config: ModelConfig, work: Workload) -> Comparison:
    """Peak bytes of any step, with a small model: blocks depend only on the number of tokens."""
    small = ModelConfig(config.vocab_size, 16, 1, 2, 1, 16, max_length=config.max_length)
    held = {}
    for who, window in ((OURS, WINDOW), (PEER, None)):
        engine = Engine(build(replace(small, window=window)), work.blocks, BLOCK)
        engine.generate(work.prompts, [SamplingParameters(n) for n in work.new])
        most = max(step.blocks_used for step in engine.steps)
        held[who] = most * BLOCK * place_bytes(config)
    return once(held)


def batches(work: Workload) -> list[tuple[list[tuple[tuple[int, ...], int]], int]]:
    """(prompts and answer lengths, longest prompt) of each static batch."""
    all_ = list(zip(work.prompts, work.new))
    parts = [all_[first : first + SIZE] for first in range(0, len(all_), SIZE)]
    return [(part, max(len(prompt) for prompt, _ in part)) for part in parts]


@torch.no_grad()
def paged_measured(config: ModelConfig, texts: int, length: int, repeats: int) -> Comparison:
    """One layer of a decode step in which each sequence has one query over all its tokens."""
    pages = -(-length // BLOCK)
    cache = PagedCache(replace(config, layers=1), texts * pages, BLOCK)
    for held in (cache.keys, cache.values):
        held.normal_()
    table = torch.randperm(texts * pages).view(texts, pages)
    group = Tile(cache, [Part(row, length - 1, 1) for row in table.tolist()])
    q = torch.randn(texts, config.heads, 1, config.head_size)
    k, v = (
        held[0][:, table].flatten(2, 3).transpose(0, 1)[:, :, :length].contiguous()
        for held in (cache.keys, cache.values)
    )  # (B, K, T, C)
    steps = {
        OURS: partial(paged_attention, q, cache.keys[0], cache.values[0], group),
        PEER: partial(
            F.scaled_dot_product_attention, q, k, v, enable_gqa=config.heads != config.kv_heads
        ),
    }
    torch.testing.assert_close(steps[OURS](), steps[PEER](), rtol=1e-4, atol=1e-5)
    return compare(steps, repeats, warmup=3)
