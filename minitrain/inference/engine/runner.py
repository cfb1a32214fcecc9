"""The tensors of a step: one forward pass over all new tokens of all requests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from einops import rearrange
from torch import Tensor

from minitrain.errors import InputError
from minitrain.inference.cache.paged import PagedCache
from minitrain.inference.cache.spans import Part, batching_order
from minitrain.inference.engine.head import Head
from minitrain.inference.engine.scheduler import Plan, Work
from minitrain.inference.engine.weights import Weights
from minitrain.inference.forward import check_servable, forward_new
from minitrain.inference.speculation.tree import after, ancestors, depths
from minitrain.model.transformer import Transformer
from minitrain.ranks.group import Group


class Adapters(Protocol):
    """The part of `finetuning.many.AdapterBank` that the engine needs."""

    def number(self, name: str) -> int: ...

    def fits(self, names: Collection[str]) -> bool: ...

    def rows(self, names: Sequence[str | None]) -> AbstractContextManager[None]: ...


class Pass(NamedTuple):
    """`logits` (M, V) have `samples` rows for each of `sampled`; of `hidden` (N, D), which the head
    is given, `rows` are each request's, by id."""

    sampled: list[Work]
    logits: Tensor
    hidden: Tensor
    rows: dict[str, slice]


class Runner:
    """`group`: the ranks over which `tensor_parallel` has cut the model. Each holds the keys and
    values of its own heads, and gets all ranks' logits: so all draw the same tokens, and plan the
    same next step, without a word about it."""

    def __init__(
        self,
        model: Transformer,
        num_blocks: int,
        block_size: int,
        adapters: Adapters | None = None,
        group: Group | None = None,
    ) -> None:
        check_servable(model)
        self.model, self.adapters, self.group = model, adapters, group
        if model.sequence_ranks > 1:
            raise InputError("ranks cannot share a token: tensor_parallel(model, group) as it is")
        self.sizes = num_blocks, block_size, 1 if group is None else group.size
        self.weights = Weights(model)
        self._begin()

    @torch.inference_mode(False)  # what is made within can be written to outside of it as well
    def _begin(self) -> None:
        """Cache and head for the weights as they are now, on their device and in their dtype."""
        self.head = Head(self.model)
        self.cache = PagedCache.of(self.model, *self.sizes)

    def begin_anew(self, closely: bool) -> bool:
        """Drops the cache's contents if the weights have changed since the last call."""
        changed = self.weights.changed(closely)
        if closely and self.group is not None:  # all ranks plan the same steps
            any_rank = torch.tensor([float(changed)], device=self.group.device)
            changed = bool(self.group.all_reduce(any_rank, "max"))
        if changed:
            del self.cache  # before there is another one
            self._begin()
        return changed

    def run_apart(self, plan: Plan) -> tuple[Pass | None, dict[str, Exception]]:
        """After a pass that failed: each request by itself, and by id those that fail again. What
        the first pass wrote is written over; None where all fail."""
        passes, failed = [], {}
        for work in plan.work:
            try:
                passes.append(self.run(Plan([work], plan.copies if work is plan.work[0] else [])))
            except Exception as error:
                failed[work.request.id] = error
        if not passes:
            return None, failed
        rows, row = {}, 0
        for one in passes:
            rows |= {id: slice(row, row + len(one.hidden)) for id in one.rows}
            row += len(one.hidden)
        logits, hidden = (torch.cat(z) for z in zip(*((p.logits, p.hidden) for p in passes)))
        return Pass([w for p in passes for w in p.sampled], logits, hidden, rows), failed

    @torch.no_grad()
    def run(self, plan: Plan) -> Pass:
        parts = {work.request.id: part_of(work, self.cache.keys.device) for work in plan.work}
        ordered = sorted(plan.work, key=lambda work: batching_order(parts[work.request.id]))
        self.cache.copy(plan.copies)
        reader = self.cache.reader([parts[work.request.id] for work in ordered])
        device = self.cache.keys.device
        tokens = torch.tensor([t for work in ordered for t in work.tokens], device=device)
        adapters = [work.request.adapter for work in ordered for _ in range(work.count)]
        with self._rows(adapters):
            hidden = forward_new(self.model, tokens[:, None], reader)  # (N, 1, D)
        sampled, rows, row, where = [], [], 0, {}
        for work in ordered:
            where[work.request.id] = slice(row, row + work.count)
            row += work.count
            if work.samples:
                sampled.append(work)
                rows += range(row - work.samples, row)
        with self._rows([adapters[row] for row in rows]):
            logits = self.head(hidden[rows])[:, 0]  # (M, V), or (M, V/N) of a group
        return Pass(sampled, self._of_all_ranks(logits), hidden[:, 0], where)

    def _of_all_ranks(self, logits: Tensor) -> Tensor:
        """logits (M, V/N) -> (M, V), without the columns that fill the last rank up."""
        if self.group is None or not len(logits):
            return logits
        gathered = logits.new_empty(self.group.size, *logits.shape)
        self.group.all_gather(gathered, logits.contiguous())
        whole = rearrange(gathered, "ranks m v -> m (ranks v)")
        return whole[:, : self.model.config.vocab_size]

    def _rows(self, names: Sequence[str | None]) -> AbstractContextManager[None]:
        return nullcontext() if self.adapters is None else self.adapters.rows(names)


def part_of(work: Work, device: torch.device) -> Part:
    """Its new tokens as attention takes them: a tree's with what each one sees."""
    blocks, draft = work.request.table.blocks, work.draft
    if draft.is_chain:
        return Part(blocks, work.start, work.count)
    parents = after(work.count - len(draft), draft.parents)
    positions = [work.start + depth - 1 for depth in depths(parents)]
    return Part(blocks, work.start, work.count, positions, ancestors(parents).to(device))
