"""The tensors of a step: one forward pass over all new tokens of all requests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from minitrain.inference.cache.paged import PagedCache, Part, batching_order
from minitrain.inference.engine.scheduler import Plan, Work
from minitrain.inference.forward import forward_new
from minitrain.model.transformer import Transformer


class Adapters(Protocol):
    """What the engine needs of `finetuning.many.rows.AdapterBank`."""

    def number(self, name: str) -> int: ...

    def fits(self, names: Collection[str]) -> bool: ...

    def rows(self, names: Sequence[str | None]) -> AbstractContextManager[None]: ...


class Runner:
    def __init__(
        self,
        model: Transformer,
        num_blocks: int,
        block_size: int,
        adapters: Adapters | None = None,
    ) -> None:
        self.model, self.adapters = model, adapters
        self.cache = PagedCache.of(model, num_blocks, block_size)

    @torch.no_grad()
    def run(self, plan: Plan) -> tuple[list[Work], Tensor]:
        """-> the work that is sampled from, and its logits (M, V), `samples` rows for each."""
        parts = {
            work.request.id: Part(work.request.table.blocks, work.start, work.count)
            for work in plan.work
        }
        ordered = sorted(plan.work, key=lambda work: batching_order(parts[work.request.id]))
        self.cache.copy(plan.copies)
        reader = self.cache.reader([parts[work.request.id] for work in ordered])
        device = self.cache.keys.device
        tokens = torch.tensor([t for work in ordered for t in work.tokens], device=device)
        adapters = [work.request.adapter for work in ordered for _ in range(work.count)]
        with self._rows(adapters):
            hidden = forward_new(self.model, tokens[:, None], reader)  # (N, 1, D)
        sampled, rows, row = [], [], 0
        for work in ordered:
            row += work.count
            if work.samples:
                sampled.append(work)
                rows += range(row - work.samples, row)
        with self._rows([adapters[row] for row in rows]):
            return sampled, self.model.head(hidden[rows])[:, 0]  # (M, V)

    def _rows(self, names: Sequence[str | None]) -> AbstractContextManager[None]:
        return nullcontext() if self.adapters is None else self.adapters.rows(names)
