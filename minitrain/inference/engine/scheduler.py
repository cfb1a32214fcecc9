"""Decides how many tokens of each request the next step computes: one rule, and no tensors.

    new tokens = len(tokens) - num_computed_tokens, as many as budget and blocks allow

There is no prefill phase and no decode phase. A prompt has many new tokens, and gets the rest of
the budget: that is chunked prefill. A decoding request has one. A cached prefix counts as computed.
A request that lost its blocks has all its tokens to compute again.

    budget 8    step 1   A A A A A A A A      A's prompt has 10 tokens
                step 2   A A B B B B B B      B arrives, with 9
                step 3   A B B B C C          A answers, B's prompt ends; C arrives
                step 4   A B C

First come, first served. Running requests come first, oldest first; if a block is missing, the
youngest running request is preempted: it frees all its blocks and waits again, in front. So the
oldest always continues, and every request finishes. Drafts extend it (speculation/scheduler.py).
After vLLM's v1 scheduler; Yu et al., Orca (OSDI 2022), for iteration-level scheduling; Agrawal et
al., Sarathi, arXiv 2308.16369, for chunks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from minitrain.errors import InputError
from minitrain.inference.cache.blocks import BlockManager, Copies, Table
from minitrain.inference.cache.paged import Part
from minitrain.inference.engine.request import Request, Status


@dataclass(frozen=True)
class Work:
    """A request's `tokens` from position `start` on. `samples`: how many of the last ones need
    logits: 1 if the request's tokens end here, 0 in the middle of a prompt."""

    request: Request
    start: int
    tokens: list[int]
    samples: int

    @classmethod
    def of(cls, request: Request, start: int, most: int) -> Work:
        tokens = request.tokens[start : start + most]
        return cls(request, start, tokens, int(start + len(tokens) == len(request.tokens)))

    @property
    def count(self) -> int:
        return len(self.tokens)

    @property
    def part(self) -> Part:
        """The new tokens in the form that attention takes."""
        return Part(self.request.table.blocks, self.start, self.count)


@dataclass
class Plan:
    """A step's work; `copies` of blocks are made before it."""

    work: list[Work] = field(default_factory=list)
    copies: Copies = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(work.count for work in self.work)


class Scheduler:
    """`budget` tokens a step, from `max_running` requests if their adapters fit together."""

    def __init__(
        self,
        blocks: BlockManager,
        budget: int = 512,
        max_running: int = 64,
        adapters_fit: Callable[[set[str]], bool] | None = None,
    ) -> None:
        if max_running < 1 or budget < max_running:
            raise InputError(
                f"a budget of {budget} tokens a step cannot serve {max_running} requests, one "
                f"token each: give a budget of {max(1, max_running)} or more, or a smaller "
                "max_running"
            )
        self.blocks, self.budget, self.max_running = blocks, budget, max_running
        self.adapters_fit = adapters_fit
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        self.check(request)
        self.waiting.append(request)

    def schedule(self) -> Plan:
        """Plans the next step; empty if no request is left."""
        plan = Plan()
        self._fork_from_firsts()
        self._go_on(plan)
        if not plan.preempted:
            self._admit(plan)
        return plan

    def _go_on(self, plan: Plan) -> None:
        """Schedules running requests, oldest first."""
        index, left = 0, self.budget
        while index < len(self.running):
            request = self.running[index]
            work, copies = self._next(request, left, len(self.running) - index - 1)
            if copies is None:
                plan.preempted.append(self._preempt())
                continue  # retries, unless it was this one
            if work.count:
                plan.work.append(work)
                plan.copies += copies
                left -= work.count
            index += 1

    def _next(self, request: Request, left: int, behind: int) -> tuple[Work, Copies | None]:
        """A running request's next tokens, and the block copies needed to write them: None if
        blocks are missing. `left` is the budget for it and for `behind` more requests."""
        work = Work.of(request, request.num_computed_tokens, left)
        return work, self.blocks.grow(request.table, work.start, work.start + work.count)

    def restart(self) -> None:
        """Recomputes all running requests from their first token, without reusing any cache."""
        while self.running:
            self._preempt()
        self.blocks.forget()

    def _preempt(self) -> Request:
        """Preempts the youngest running request: it waits again, without blocks, ahead of all
        others."""
        request = self.running.pop()
        self.blocks.release(request.table)
        request.status, request.num_computed_tokens = Status.WAITING, 0
        self.waiting.appendleft(request)
        return request

    def _admit(self, plan: Plan) -> None:
        """Admits waiting requests in order, while there is budget, room in the batch,
        and blocks."""
        left = self.budget - plan.num_tokens
        aside = 0  # those that wait for another's prompt do not block the next ones
        while aside < len(self.waiting) and len(self.running) < self.max_running:
            request = self.waiting[aside]
            if left == 0 or not self._fits(request):
                return
            if request.waits_for_first:
                aside += 1
                continue
            admitted = self.blocks.admit(request.tokens, request.adapter_key, left)
            if admitted is None:
                assert self.running, "an empty pool cannot hold a request that `add` let in"
                return
            del self.waiting[aside]
            self.start(request, *admitted)
            plan.work.append(Work.of(request, request.num_computed_tokens, left))
            left -= plan.work[-1].count

    def start(self, request: Request, table: Table, computed: int) -> None:
        """Starts a request whose first `computed` tokens are in the table's blocks."""
        request.table, request.status = table, Status.RUNNING
        request.num_computed_tokens = request.num_cached_tokens = computed
        self.running.append(request)

    def _fork_from_firsts(self) -> None:
        """Lets a request whose prompt another one has computed continue from its blocks, if there
        is room."""
        heirs: dict[Request, Request] = {}  # the next one, if the first has ended
        for request in [one for one in self.waiting if one.first is not None]:
            first, full = request.first, len(self.running) == self.max_running
            if first.status is Status.FINISHED:
                heir = heirs.setdefault(first, request)
                request.first = None if heir is request else heir
            elif first.is_running and not request.waits_for_first and not full:
                self.waiting.remove(request)
                request.first = None
                self.fork(first, request)

    def _fits(self, request: Request) -> bool:
        names = {one.adapter for one in (*self.running, request)} - {None}
        return self.adapters_fit is None or self.adapters_fit(names)

    def computed(self, work: Work) -> None:
        """After a step, once the drawn tokens are appended to the request's."""
        self._advance(work.request, work.start + work.count)

    def _advance(self, request: Request, num_computed: int) -> None:
        request.num_computed_tokens = num_computed
        self.blocks.commit(request.table, request.tokens, request.adapter_key, num_computed)
        self.blocks.slide(request.table, num_computed)

    def fork(self, parent: Request, child: Request) -> None:
        """`child`, whose tokens are the parent's first ones, continues from the same blocks.

        If the batch is full, or the parent no longer has the blocks, it waits like any other.
        """
        computed = min(parent.num_computed_tokens, len(child.tokens) - 1)
        full = len(self.running) == self.max_running
        table = None if full or computed == 0 else self.blocks.fork(parent.table, computed)
        if table is None:
            self.waiting.append(child)
        else:
            self.start(child, table, computed)

    def finish(self, request: Request, reason: str) -> None:
        """Ends a request in any state; its blocks are freed, and stay findable."""
        if request.status is Status.RUNNING:
            self.running.remove(request)
            self.blocks.release(request.table)
        elif request.status is Status.WAITING:
            self.waiting.remove(request)
        request.status, request.finish_reason = Status.FINISHED, reason

    def check(self, request: Request) -> None:
        """InputError for a request that would not fit into an empty pool."""
        needed = self.blocks.most_blocks(request.most_tokens, self.budget)
        if needed > self.blocks.num_blocks:
            raise InputError(
                f"a prompt of {len(request.prompt)} tokens and an answer of up to "
                f"{request.parameters.max_new_tokens} need {needed} blocks, and the pool has "
                f"{self.blocks.num_blocks} of {self.blocks.block_size} tokens: shorten one of "
                "them, or make the pool larger"
            )
