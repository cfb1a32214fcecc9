"""Decides how many tokens of each request the next step computes: one rule, and no tensors.

    new tokens = num_tokens - num_computed_tokens, as many as budget and blocks allow

There is no prefill phase and no decode phase. A prompt has many new tokens, and gets what is left
of the budget: that is chunked prefill. An answer has one. A known prefix counts as computed. A
request that lost its blocks has all its tokens to compute again. Drafts are tokens too: a tree's
nodes stand one after the other, and what is kept of them is moved together (engine.py).

    budget 8    step 1   A A A A A A A A      A's prompt has 10 tokens
                step 2   A A B B B B B B      B arrives, with 9
                step 3   A B B B C C          A answers, B's prompt ends; C arrives
                step 4   A B C

First come, first served. Who runs comes first, the oldest first; where a block is missing, the
youngest that runs gives all its blocks back and waits again, in front. So the oldest always goes
on, and every request ends. After vLLM's v1 scheduler; Yu et al., Orca (OSDI 2022), for scheduling
by the step; Agrawal et al., Sarathi, arXiv 2308.16369, for chunks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from minitrain.errors import InputError
from minitrain.inference.cache.blocks import BlockManager, Copies
from minitrain.inference.engine.request import Request, Status
from minitrain.inference.speculation.proposer import Draft


@dataclass(frozen=True)
class Work:
    """A request's `tokens` from place `start` on, those of its `draft` at their end.

    `samples`: at how many of the last ones the next token is wanted; where the text ends, 1 and
    1 for each draft, and 0 in the middle of a prompt.
    """

    request: Request
    start: int
    tokens: list[int]
    samples: int
    draft: Draft

    @classmethod
    def of(cls, request: Request, start: int, count: int) -> Work:
        known = request.tokens[start : start + count]
        draft = request.draft.first(count - len(known))
        at_end = start + count == request.num_tokens
        return cls(request, start, [*known, *draft.tokens], 1 + len(draft) if at_end else 0, draft)

    @property
    def count(self) -> int:
        return len(self.tokens)


@dataclass
class Plan:
    """A step's work; `copies` of blocks come before it."""

    work: list[Work] = field(default_factory=list)
    copies: Copies = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    num_tokens: int = 0

    def add(self, work: Work) -> None:
        self.work.append(work)
        self.num_tokens += work.count


class Scheduler:
    """`budget` tokens a step; `max_running` requests in it, if their adapters fit together."""

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
        """The next step; empty where nobody is here."""
        plan = Plan()
        self._fork_from_firsts()
        self._go_on(plan)
        if not plan.preempted:
            self._admit(plan)
        return plan

    def _go_on(self, plan: Plan) -> None:
        """Schedules running requests, the oldest first."""
        index = 0
        while index < len(self.running):
            request = self.running[index]
            start, left = request.num_computed_tokens, self.budget - plan.num_tokens
            known, behind = len(request.tokens) - start, len(self.running) - index - 1
            request.draft = request.draft.first(max(0, left - known - behind))
            count = min(request.num_tokens - start, left)
            copies = self.blocks.grow(request.table, start, start + count)
            if copies is None and len(request.draft):
                request.draft = Draft()  # a guess is worth nobody's blocks, nor their turn
                continue
            if copies is None:
                plan.preempted.append(self._preempt())
                continue  # again, unless it was this one
            if count:
                plan.add(Work.of(request, start, count))
                plan.copies += copies
            index += 1

    def restart(self) -> None:
        """Everything that runs is read again from its first token, and nothing known is reused."""
        while self.running:
            self._preempt()
        self.blocks.forget()

    def _preempt(self) -> Request:
        """Preempts the youngest running request: it waits again, without blocks, in front of all
        others."""
        request = self.running.pop()
        self.blocks.release(request.table)
        request.status, request.num_computed_tokens = Status.WAITING, 0
        request.draft, request.num_preemptions = Draft(), request.num_preemptions + 1
        self.waiting.appendleft(request)
        return request

    def _admit(self, plan: Plan) -> None:
        """Admits waiting requests in order, while there is budget, room in the batch,
        and blocks."""
        aside = 0  # who waits for another's prompt lets the next one pass
        while aside < len(self.waiting) and len(self.running) < self.max_running:
            request, left = self.waiting[aside], self.budget - plan.num_tokens
            if left == 0 or not self._fits(request):
                return
            if request.waits_for_first:
                aside += 1
                continue
            admitted = self.blocks.admit(request.tokens, request.adapter_key, left)
            if admitted is None:
                assert self.running, "an empty pool cannot hold a request that `add` let in"
                return
            request.table, computed = admitted
            request.num_computed_tokens = request.num_cached_tokens = computed
            request.status = Status.RUNNING
            del self.waiting[aside]
            self.running.append(request)
            count = min(request.num_tokens - computed, left)
            plan.add(Work.of(request, computed, count))

    def _fork_from_firsts(self) -> None:
        """Lets a request whose prompt another one has computed continue from its blocks, if there
        is room."""
        heirs: dict[Request, Request] = {}  # the next one, where the first has ended
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

    def computed(self, work: Work, kept: int = 0) -> None:
        """After a step, when the request's answer has grown by what was drawn.

        `kept` of its draft's tokens were, and stand behind the text's last one by now. What the
        others left in the cache is not counted, and written over.
        """
        request = work.request
        request.num_computed_tokens = work.start + work.count - len(work.draft) + kept
        request.draft = Draft()
        self.blocks.truncate(request.table, request.num_computed_tokens)
        self.blocks.commit(
            request.table, request.tokens, request.adapter_key, request.num_computed_tokens
        )
        self.blocks.slide(request.table, request.num_computed_tokens)

    def fork(self, parent: Request, child: Request) -> None:
        """`child`, whose tokens are the parent's first ones, goes on from them in the same blocks.

        Where the batch is full, or the parent has not the blocks, it waits like any other.
        """
        self.check(child)
        computed = min(parent.num_computed_tokens, len(child.tokens) - 1)
        full = len(self.running) == self.max_running
        table = None if full or computed == 0 else self.blocks.fork(parent.table, computed)
        if table is None:
            self.waiting.append(child)
            return
        child.table = table
        child.num_computed_tokens = child.num_cached_tokens = computed
        child.status = Status.RUNNING
        self.running.append(child)

    def has_room(self, num_tokens: int) -> bool:
        """For a request of so many tokens, at once: nobody waits, and blocks are free."""
        full = len(self.running) == self.max_running or self.waiting
        needed = self.blocks.blocks_for(num_tokens) - self.blocks.out_of_window(num_tokens - 1)
        return not full and needed <= len(self.blocks.free)

    def adopt(self, request: Request, computed: int) -> int:
        """`request`, which waits, goes on after its first `computed` tokens, whose keys and values
        were made elsewhere. -> how many of them are known here; the others' are to be written."""
        key = request.adapter_key
        table, known = self.blocks.admit(request.tokens, key, computed, elsewhere=computed)
        self.waiting.remove(request)
        request.table, request.status = table, Status.RUNNING
        request.num_computed_tokens = request.num_cached_tokens = computed
        self.running.append(request)
        return known

    def finish(self, request: Request, reason: str) -> None:
        """Ends it, wherever it is; its blocks are free, and findable."""
        if request.status is Status.RUNNING:
            self.running.remove(request)
            self.blocks.release(request.table)
        elif request.status is Status.WAITING:
            self.waiting.remove(request)
        request.status, request.finish_reason = Status.FINISHED, reason

    def check(self, request: Request) -> None:
        """InputError for a request that no empty pool could hold to its end."""
        needed = self.blocks.most_blocks(request.most_tokens, self.budget)
        if needed > self.blocks.num_blocks:
            raise InputError(
                f"a prompt of {len(request.prompt)} tokens and an answer of up to "
                f"{request.parameters.max_new_tokens} need {needed} blocks, and the pool has "
                f"{self.blocks.num_blocks} of {self.blocks.block_size} tokens: shorten one of "
                "them, or make the pool larger"
            )
