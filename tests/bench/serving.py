"""Serves the same requests by our engine and by three methods of `transformers`, token by token.

All requests arrive at the start, each with its own number of tokens to generate, greedily. A batch
of `generate` runs until its longest answer is complete, and its rows are left-padded to its longest
prompt. Token times are read from the clock at each step of each contender.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from minitrain.bench.case import OURS, PEER, peer_module
from minitrain.inference.engine.engine import Engine
from minitrain.inference.engine.request import Times
from minitrain.inference.load import Latency, latency
from minitrain.inference.parameters import SamplingParameters
from minitrain.measure.clock import Comparison, Timing
from minitrain.model.transformer import Transformer

BLOCK = 16
SIZE = 8  # of a static batch
CHUNK, WHOLE = 64, 4096  # tokens per step


@dataclass(frozen=True)
class Workload:
    prompts: tuple[tuple[int, ...], ...]
    new: tuple[int, ...]  # tokens to generate per request

    @classmethod
    def mixed(
        cls,
        requests: int,
        vocabulary: int,
        shared: int = 0,
        longest: int = 64,
        most_new: int = 128,
        seed: int = 0,
    ) -> Workload:
        """Prompts of 8 to `longest` tokens and answers of 16 to `most_new`; every prompt also
        starts with the same `shared` tokens."""
        chance = random.Random(seed)
        common = chance.choices(range(3, vocabulary), k=shared)
        prompts = [
            (*common, *chance.choices(range(3, vocabulary), k=chance.randint(8, longest)))
            for _ in range(requests)
        ]
        return cls(tuple(prompts), tuple(chance.randint(16, most_new) for _ in prompts))

    @property
    def blocks(self) -> int:
        return self.blocks_of(BLOCK)

    def blocks_of(self, size: int) -> int:
        """Blocks that hold all requests at once, none shared."""
        return sum(-(-(len(p) + n) // size) for p, n in zip(self.prompts, self.new))


@dataclass(frozen=True)
class Served:
    answers: list[list[int]]
    seconds: float
    times: list[Times]

    @cached_property
    def latency(self) -> Latency:
        return latency(self.times)


Serve = Callable[[Workload], Served]


def by_engine(model: Transformer, block: int = BLOCK) -> Serve:
    def serve(work: Workload) -> Served:
        start = time.perf_counter()
        engine = Engine(model, work.blocks_of(block), block)
        answers = engine.generate(work.prompts, [SamplingParameters(n) for n in work.new])
        seconds = time.perf_counter() - start
        return Served([a.tokens for a in answers], seconds, [a.times for a in answers])

    return serve


def in_batches(llama: nn.Module, size: int) -> Serve:
    """`generate` on batches of `size`, one after another; 1 is sequential."""

    def serve(work: Workload) -> Served:
        start = time.perf_counter()
        answers, times = [], []
        for first in range(0, len(work.prompts), size):
            part = slice(first, first + size)
            told, ticks = one_batch(llama, work.prompts[part], max(work.new[part]))
            for row, new in zip(told, work.new[part]):
                answers.append(row[:new])
                times.append(Times(start, ticks[0], ticks[:new], ticks[new - 1]))
        return Served(answers, time.perf_counter() - start, times)

    return serve


def one_batch(
    llama: nn.Module, prompts: Sequence[Sequence[int]], new: int
) -> tuple[list[list[int]], list[float]]:
    """-> the answers, and the time of each of their tokens."""
    stopping = peer_module("inference", "transformers").StoppingCriteria
    ticks: list[float] = []

    class Ticking(stopping):
        def __call__(self, ids: Tensor, scores: Tensor, **more: object) -> Tensor:
            ticks.append(time.perf_counter())
            return torch.zeros(len(ids), dtype=torch.bool)

    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])  # (B, T)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    told = llama.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=new,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=[Ticking()],
    )
    return told[:, width:].tolist(), ticks


def continuously(llama: nn.Module) -> Serve:
    """`transformers`' own continuous batching, over pages; its start-up is included in the time."""
    transformers = peer_module("inference", "transformers")

    def serve(work: Workload) -> Served:
        config = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        start = time.perf_counter()
        found = {}
        with llama.continuous_batching_context_manager(generation_config=config) as manager:
            ids = [
                manager.add_request(list(p), max_new_tokens=n, record_timestamps=True)
                for p, n in zip(work.prompts, work.new)
            ]
            while len(found) < len(ids):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    found[result.request_id] = result
        seconds = time.perf_counter() - start
        results = [found[id] for id in ids]
        times = [Times(start, r.timestamps[0], r.timestamps, r.timestamps[-1]) for r in results]
        return Served([r.generated_tokens for r in results], seconds, times)

    return serve


@dataclass
class Pairs:
    """Ours and a peer on one workload. They alternate, once, however many costs are read;
    AssertionError where answers differ."""

    ours: Serve
    peer: Serve
    work: Workload
    repeats: int

    @cached_property
    def runs(self) -> list[dict[str, Served]]:
        serve, runs = {OURS: self.ours, PEER: self.peer}, []
        order = [OURS, PEER]
        for _ in range(self.repeats):
            runs.append({who: serve[who](self.work) for who in order})
            order.reverse()
        for run in runs:
            assert run[OURS].answers == run[PEER].answers, "the contenders tell different answers"
        return runs

    def seconds(self) -> Comparison:
        return self.comparison(lambda served: served.seconds)

    def comparison(self, cost: Callable[[Served], float]) -> Comparison:
        return Comparison(
            {who: Timing(tuple(cost(run[who]) for run in self.runs)) for who in (OURS, PEER)}
        )


def beside_long_prompts(model: Transformer, repeats: int) -> Comparison:
    """The pauses of eight running requests when four long prompts arrive."""
    return Pairs(
        partial(with_long_prompts, model, CHUNK),
        partial(with_long_prompts, model, WHOLE),
        Workload.mixed(SIZE, model.config.vocab_size, longest=16, most_new=64),
        repeats,
    ).comparison(lambda served: served.latency.between_tokens[99])


def with_long_prompts(model: Transformer, budget: int, work: Workload) -> Served:
    length = model.config.max_length - 8
    engine = Engine(model, work.blocks + 4 * (length // BLOCK + 1), BLOCK, budget, SIZE + 4)
    parameters = [SamplingParameters(max(n, 24)) for n in work.new]
    told = {engine.add(p, one): [] for p, one in zip(work.prompts, parameters)}
    times, steps = [], 0
    while engine.busy:
        if steps == 8:
            for number in range(4):
                engine.add([3 + number] * length, SamplingParameters(4))
        for output in engine.step():
            if output.id in told:
                told[output.id].append(output.drawn.token)
                times += [output.times] if output.times else []
        steps += 1
    return Served(list(told.values()), sum(step.seconds for step in engine.steps), times)
