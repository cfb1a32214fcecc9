"""The loops that lab e09's parts plug into, from one sequence with a cache to a server.

read_on         one sequence's new tokens through `attend`, a layer's attention with a cache
generate_batch  static batches: sequences start and end together, as long as the longest
Server          requests served step by step: schedule, one forward pass over pages, a token for
                each one due; `schedule`, `sample` and the block manager are passed in

static batch   sequence 0   p p p p a a a a a a a      p a prompt's token   a an answer's
               sequence 1   p p a a a . . . . . .      . a row computed in vain
               sequence 2   (waits until sequence 0 has ended)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache
from minitrain.inference.cache.dense import read_on as read_batch
from minitrain.inference.cache.paged import PagedCache, Part, batching_order
from minitrain.inference.forward import forward_new
from minitrain.inference.plain.reference import BlockManager, Copies, Rope
from minitrain.model.attention.grouped_query import Attention
from minitrain.model.rope import rotate, rotation
from minitrain.model.transformer import Transformer

Kernel = Callable[[Attention, Tensor, Rope, Tensor, Tensor, int], Tensor]


class Cache:
    """A cache for B sequences of up to S tokens in every layer, with its current length."""

    def __init__(self, model: Transformer, texts: int, room: int) -> None:
        config, weight = model.config, model.embed.weight
        shape = (config.layers, 2, texts, config.kv_heads, room, config.head_size)
        self.layers = torch.zeros(shape, dtype=weight.dtype)
        self.length = 0


@torch.no_grad()
def read_on(model: Transformer, tokens: Tensor, cache: Cache, attend: Kernel) -> Tensor:
    """tokens (B, T), continuing the cache -> logits (B, V) after the last of them."""

    def rope(z: Tensor, positions: Tensor) -> Tensor:
        return rotate(z, rotation(model.config, positions, z.dtype))

    x = model.embed(tokens)  # (B, T, D)
    for block, (keys, values) in zip(model.blocks, cache.layers):
        normed = block.attention_norm(x)
        x = x + attend(block.attention, normed, rope, keys, values, cache.length)
        x = x + block.mlp(block.mlp_norm(x))
    cache.length += tokens.shape[1]
    return model.head(model.norm(x[:, -1]))


@torch.no_grad()
def generate_batch(
    model: Transformer, prompts: Sequence[list[int]], wanted: Sequence[int]
) -> tuple[list[list[int]], list[list[float]]]:
    """-> the likeliest answers, wanted[i] tokens for prompts[i], and the time of each token."""
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths)
    cache = DenseCache.of(model, len(prompts), longest + max(wanted))
    filled = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    hidden = read_batch(model, filled, cache)[range(len(prompts)), [n - 1 for n in lengths]]
    cache.truncate(lengths)
    told: list[list[int]] = [[] for _ in prompts]
    times: list[list[float]] = [[] for _ in prompts]
    for step in range(max(wanted)):
        tokens = model.head(hidden).argmax(dim=-1)  # (B,)
        now = time.perf_counter()
        for row, token in enumerate(tokens.tolist()):
            if step < wanted[row]:
                told[row].append(token)
                times[row].append(now)
        if step + 1 < max(wanted):
            hidden = read_batch(model, tokens[:, None], cache)[:, 0]
    return told, times


@dataclass(eq=False)
class Request:
    """`wanted` tokens after `prompt`; temperature 0 is greedy."""

    prompt: list[int]
    wanted: int
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    adapter: Hashable = None
    computed: int = 0
    reused: int = 0  # prompt tokens found in other requests' blocks
    preemptions: int = 0
    table: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # the time of each answer token

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.generator = torch.Generator().manual_seed(self.seed)
        self.arrived = time.perf_counter()

    @property
    def told(self) -> list[int]:
        return self.tokens[len(self.prompt) :]


Work = list[tuple[Request, int]]
Schedule = Callable[..., tuple[Work, Copies]]
Sample = Callable[[Tensor, Sequence[Request]], list[int]]


class Server:
    """`manager` keeps the tables over `num_blocks` blocks; at most `budget` tokens a step."""

    def __init__(
        self,
        model: Transformer,
        manager: BlockManager,
        schedule: Schedule,
        sample: Sample,
        budget: int = 512,
        most_running: int = 64,
    ) -> None:
        self.model, self.manager = model, manager
        self.schedule, self.sample = schedule, sample
        self.budget, self.most_running = budget, most_running
        self.cache = PagedCache.of(model, len(manager.pool.refs), manager.size)
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()

    def add(self, *requests: Request) -> None:
        size, num_blocks = self.manager.size, len(self.manager.pool.refs)
        for request in requests:
            most = len(request.prompt) + request.wanted - 1
            if -(-most // size) > num_blocks:
                raise InputError(
                    f"a text of up to {most} tokens needs {-(-most // size)} blocks of {size}, and "
                    f"the pool has {num_blocks}: make it larger, or the text shorter"
                )
            self.waiting.append(request)

    def run(self) -> None:
        """Steps until no request is left."""
        while self.running or self.waiting:
            self.step()

    @torch.no_grad()
    def step(self) -> int:
        """Runs one step -> the number of tokens computed."""
        ran = list(self.running)
        work, copies = self.schedule(
            self.running, self.waiting, self.manager, self.budget, self.most_running
        )
        for request in ran:
            request.preemptions += request not in self.running
        for request, _ in work:
            request.reused += request.computed if request not in ran else 0
        if not work:
            raise InputError("a step without work, while requests wait: what does schedule return?")
        self.cache.copy(copies)
        due, logits = self.forward(work)
        for request, count in work:
            request.computed += count
            self.manager.commit(request.table, request.tokens, request.computed, request.adapter)
        for request, token in zip(due, self.sample(logits, due) if due else ()):
            request.tokens.append(token)
            request.times.append(time.perf_counter())
            if len(request.told) == request.wanted:
                self.running.remove(request)
                self.manager.release(request.table)
        return sum(count for _, count in work)

    def forward(self, work: Work) -> tuple[list[Request], Tensor]:
        """-> the M requests due for a token, and their logits (M, V)."""
        parts = [(Part(r.table, r.computed, count), r) for r, count in work]
        parts.sort(key=lambda pair: batching_order(pair[0]))
        reader = self.cache.reader([part for part, _ in parts])
        tokens = [t for part, r in parts for t in r.tokens[part.start : part.end]]
        hidden = forward_new(self.model, torch.tensor(tokens)[:, None], reader)  # (N, 1, D)
        due, rows, row = [], [], 0
        for part, request in parts:
            row += part.count
            if part.end == len(request.tokens):
                due.append(request)
                rows.append(row - 1)
        return due, self.model.head(hidden[rows, 0])
