from __future__ import annotations

import pytest

from minitrain.errors import InputError
from minitrain.inference.cache.blocks import ROOT, BlockManager, Table
from minitrain.inference.engine.scheduler import Scheduler, Work
from minitrain.inference.speculation.proposer import Draft
from minitrain.inference.speculation.scheduler import DraftScheduler, draft_of

from .traffic import Server, random_case

CASES = 3000


def test_random_traffic_is_answered_as_if_each_request_were_alone():
    servers = [random_case(seed) for seed in range(CASES)]
    assert sum(server.preemptions for server in servers) > 1000
    assert sum(server.scheduler.blocks.hit for server in servers) > 8000
    assert sum(server.scheduler.blocks.left for server in servers) > 5000


class StaleEntry(BlockManager):
    """nano-vllm f64d821: a block that is taken for something else stays findable as what it was."""

    def _oldest(self):
        block = next(iter(self.free))
        self.blocks[block].key = None
        return block


class KeyWithoutParent(BlockManager):
    def _key(self, parent, adapter, tokens, index):
        return super()._key(0, adapter, tokens, index)


class KeyWithoutAdapter(BlockManager):
    """Another adapter's keys and values: what one tenant has computed is read by another."""

    def _key(self, parent, adapter, tokens, index):
        return super()._key(parent, None, tokens, index)


class FullHit(BlockManager):
    """nano-vllm issue 144: a prompt that is found to its end leaves no token to compute."""

    def match(self, tokens, adapter):
        return super().match([*tokens, 0], adapter)


class WritesToShared(BlockManager):
    def grow(self, table, written, num_tokens):
        return super().grow(table, 0, num_tokens)  # as if nothing were half full


class PartialBlocksFindable(BlockManager):
    def commit(self, table, tokens, adapter, written):
        super().commit(table, tokens, adapter, self.blocks_for(written) * self.block_size)


class NeverFreed(BlockManager):
    def truncate(self, table, num_tokens):
        keep = self.blocks_for(num_tokens)
        del table.blocks[keep + 1 :]


class CountedBeforeFound(DraftScheduler):
    """nano-vllm 77dd709: how much is computed was decided before it was known what is found."""

    def _admit(self, plan):
        before = len(plan.work)
        super()._admit(plan)
        plan.work[before:] = [Work.of(w.request, 0, w.start + w.count) for w in plan.work[before:]]


class ResumedIsTakenForAnswering(DraftScheduler):
    """nano-vllm issue 144: a preempted request has answered, so it is given one token a step."""

    def _admit(self, plan):
        before = len(plan.work)
        super()._admit(plan)
        plan.work[before:] = [
            Work.of(w.request, len(w.request.tokens) - 1, 1) if w.request.generated else w
            for w in plan.work[before:]
        ]


class GivenBackTooEarly(BlockManager):
    """As if the next token were one further, so that its window's first block is gone."""

    def out_of_window(self, num_tokens):
        return super().out_of_window(num_tokens + 1)


class GivenBackToOthers(BlockManager):
    """What leaves one text's window is free, though another text reads it."""

    def slide(self, table, num_tokens):
        for block in table.blocks[table.gone : self.out_of_window(num_tokens)]:
            self.blocks[block].ref_count = 1
        super().slide(table, num_tokens)


class NeverGivenBack(BlockManager):
    def slide(self, table, num_tokens):
        pass


class ForkedBehindTheWindow(BlockManager):
    def fork(self, table, num_tokens):
        found = super().fork(table, num_tokens)
        if found is not None:
            return found
        shared = table.blocks[: self.blocks_for(num_tokens)]
        for block in shared[table.gone :]:
            self._hold(block)
        return Table(shared, 0, ROOT, min(table.gone, len(shared)), False)


class RefusedDraftsCount(DraftScheduler):
    def computed(self, work, kept=0):
        super().computed(work, len(draft_of(work)))


class OldestIsPreempted(DraftScheduler):
    def _preempt(self):
        self.running.append(self.running.pop(0))
        return super()._preempt()


class BudgetForgotten(DraftScheduler):
    def _go_on(self, plan):
        own, self.budget = self.budget, 10**6
        super()._go_on(plan)
        self.budget = own


BUGS = {
    "f64d821 stale entry": StaleEntry,
    "77dd709 counted before found": CountedBeforeFound,
    "issue 144 full hit": FullHit,
    "issue 144 resumed is taken for answering": ResumedIsTakenForAnswering,
    "key without parent": KeyWithoutParent,
    "key without adapter": KeyWithoutAdapter,
    "no copy on write": WritesToShared,
    "half a block findable": PartialBlocksFindable,
    "blocks leak": NeverFreed,
    "given back too early": GivenBackTooEarly,
    "given back while others read": GivenBackToOthers,
    "never given back": NeverGivenBack,
    "forked behind the window": ForkedBehindTheWindow,
    "refused drafts count": RefusedDraftsCount,
    "the oldest is preempted": OldestIsPreempted,
    "budget forgotten": BudgetForgotten,
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_by_random_traffic(bug):
    """It breaks an invariant, or changes an answer, in some random case."""
    part = "manager" if issubclass(BUGS[bug], BlockManager) else "scheduler"
    with pytest.raises((AssertionError, IndexError, KeyError)):
        for seed in range(CASES):
            random_case(seed, **{part: BUGS[bug]})


def test_a_long_prompt_is_computed_in_chunks_beside_who_answers():
    server = Server.of(num_blocks=40, block_size=4, budget=8, max_running=4)
    server.add("short", [1, 2], 10)
    server.step()
    server.add("long", [0, 1, 2] * 9, 2)
    plans = server.run()
    chunks = [[w.count for w in plan.work if w.request.id == "long"] for plan in plans]
    assert chunks[:4] == [[7], [7], [7], [6]]
    assert all(plan.work[0].request.id == "short" for plan in plans[:9])  # in every step
    assert max(plan.num_tokens for plan in plans) == 8


def test_drafts_give_way_before_anybody_is_preempted():
    server = Server.of(num_blocks=4, block_size=2, budget=20, max_running=2)
    server.add("a", [0, 1, 2], 2)
    server.add("b", [1, 1, 2], 2)
    server.step()
    a = server.scheduler.running[0]
    a.parameters = type(a.parameters)(6)

    def draft(request):
        return Draft.chain([0, 0, 0]) if request is a else None

    plan = server.step(draft)
    assert not plan.preempted and plan.work[0].count == 1


def test_drafts_leave_everybody_a_turn():
    server = Server.of(num_blocks=40, block_size=2, budget=6, max_running=3)
    for name in "abc":
        server.add(name, [0, 1], 9)
    server.step()

    def draft(request):
        return Draft.chain([0] * 5)

    assert [work.count for work in server.step(draft).work] == [4, 1, 1]


def test_what_no_pool_could_serve_is_refused_up_front():
    server = Server.of(num_blocks=4, block_size=2, budget=8)
    server.add("fits", [0, 1, 2], 6)  # 8 places, as the last token is never read
    with pytest.raises(InputError, match="3 tokens and an answer of up to 7 need 5 blocks"):
        server.add("too large", [0, 1, 2], 7)
    with pytest.raises(InputError, match="cannot serve 8 requests"):
        Scheduler(BlockManager(4, 2), budget=4, max_running=8)
    server.run()
    assert [request.id for request in server.ended] == ["fits"]
