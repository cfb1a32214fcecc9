"""Requests served step by step: schedule, one forward pass over pages, a token for who is due.

The parts are handed in: `schedule`, `sample` and the block manager are lab e09's, yours or these.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.inference.cache.paged import PagedCache
from minitrain.inference.cache.spans import Part, batching_order
from minitrain.inference.forward import forward_new
from minitrain.inference.plain.blocks import BlockManager, Copies
from minitrain.model.transformer import Transformer


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
    reused: int = 0  # of its tokens, found in blocks of others and not computed
    preemptions: int = 0
    table: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # when each token of the answer came

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
    """`manager` has the tables over `num_blocks` blocks; `budget` tokens a step at most."""

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
        """Steps until nobody is left."""
        while self.running or self.waiting:
            self.step()

    @torch.no_grad()
    def step(self) -> int:
        """-> how many tokens it has computed."""
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
        """-> who is due for a token (M), and the logits (M, V) for them."""
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
