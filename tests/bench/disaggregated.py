"""Disaggregated prefill and decode, against as many ranks that do both: the same requests and
tokens.

Measured on two ranks of this machine; and emulated on eight H100 that serve a 13B model, where
times follow from a roofline and link speeds and are the same in every repeat. Goodput is for a
DistServe-style target, time to first token and mean time per output token; the cost is its inverse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from minitrain.bench.case import Case
from minitrain.bench.inference import trained
from minitrain.bench.serving import Pairs
from minitrain.inference.disaggregated.emulated import Emulation
from minitrain.inference.disaggregated.serving import Pool, Served, serve_apart, serve_together
from minitrain.inference.load import Ask, Latency, Target, asks, latency, lengths_in, summary
from minitrain.model.config import ModelConfig, preset
from minitrain.model.transformer import build
from minitrain.network.fabric import h100_infiniband

APART_REASON = (
    "half of the ranks read prompts alone and queue them; chunks small enough to hide behind the "
    "weights' reading let every rank do both, and hold nobody up"
)
Cost = Callable[[Served], float]
TINY = ModelConfig(
    61, 16, 1, heads=2, kv_heads=1, ffn_size=16, max_length=4096
)  # the model generates these tokens


def cases(repeats: int = 3, requests: int = 32, emulated: int = 64) -> list[Case]:
    return [*real_cases(repeats, requests), *emulated_cases(emulated)]


def real_cases(repeats: int, requests: int, rate: float = 4.0) -> list[Case]:
    """Prompts of up to 160 tokens: stories15M has a context of 256."""
    model, pool = trained(), Pool(budget=256)
    lengths = lengths_in(requests, (32, 160), (16, 64), seed=0)
    wanted = asks(lengths, rate, model.config.vocab_size, seed=0)
    apart = partial(serve_apart, model, pool=pool)
    both = partial(serve_together, model, ranks=2, pool=pool)
    title = f"2 ranks, {rate:g} requests/s"
    peers = {
        "2 ranks that do both, chunks of 64": partial(both, chunk=64),
        "2 ranks that do both, whole prompts": partial(both, chunk=256),
    }
    return beside(title, apart, peers, wanted, WAITS, repeats)


def emulated_cases(requests: int, rate: float = 45.0) -> list[Case]:
    """Prompts of 1,024 to 3,584 tokens of a Llama-2 13B, in 16 bits."""
    lengths = lengths_in(requests, (1024, 3584), (32, 128), seed=0)
    wanted = asks(lengths, rate, TINY.vocab_size, seed=0)
    emulation = Emulation(preset("llama2-13b"), h100_infiniband())
    pool, model = Pool(num_blocks=8000, budget=4096, max_running=128), build(TINY)
    more = {"pool": pool, "emulation": emulation}
    apart = partial(serve_apart, model, prefill_ranks=4, decode_ranks=4, **more)
    both = partial(serve_together, model, ranks=8, **more)
    title = f"8 emulated H100, 13B, {rate:g} requests/s"
    peers = {
        "8 that do both, chunks of 256 (emulated)": partial(both, chunk=256),
        "8 that do both, whole prompts (emulated)": partial(both, chunk=4096),
    }
    target = Target(first_token=0.5, per_token=0.02)
    words = "seconds a request in time (0.5 s, then 20 ms a token)"
    costs = {**WAITS, words: lambda served: in_time(served, target)}
    return beside(title, apart, peers, wanted, costs, repeats=1)


def beside(
    title: str,
    apart: Callable[[Sequence[Ask]], Served],
    peers: dict[str, Callable[[Sequence[Ask]], Served]],
    wanted: Sequence[Ask],
    costs: dict[str, Cost],
    repeats: int,
) -> list[Case]:
    found = []
    for name, both in peers.items():
        pairs = Pairs(apart, both, wanted, repeats)
        for what, cost in costs.items():
            measure = partial(pairs.comparison, cost)
            found.append(Case(f"prefill apart, {title}: {what}", name, measure, APART_REASON))
    return found


def latency_of(served: Served) -> Latency:
    return latency([one.times for one in served.outcomes])


def in_time(served: Served, target: Target) -> float:
    """Seconds of the run per request that met its target; inf where none did."""
    one = summary(served.outcomes, target)
    return one.seconds / one.met if one.met else float("inf")


WAITS: dict[str, Cost] = {
    "first token, p99": lambda served: latency_of(served).first_token[99],
    "between tokens, p99": lambda served: latency_of(served).between_tokens[99],
}
