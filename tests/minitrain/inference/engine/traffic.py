"""Random traffic for the scheduler and the block manager, over a store that only pretends.

In a place of a block the store keeps a digest of the text up to there; the pretended model reads
all places of a text through its block table, and answers from what it finds. So a place that holds
another text's digest is found at once, and an answer that depends on company is another answer.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from minitrain.inference.cache.blocks import ROOT, BlockManager
from minitrain.inference.engine.request import Request, Status, Times
from minitrain.inference.engine.scheduler import Plan, Scheduler
from minitrain.inference.parameters import SamplingParameters

TOKENS = 3  # few, so that texts are often alike
MOST_STEPS = 600


def digest(before: int, token: int) -> int:
    return (before * 1_000_003 + token + 1) % (2**61 - 1)


def first_digest(adapter: str | None) -> int:
    return 7 if adapter is None else 11 + ord(adapter[0])


def digests(tokens: list[int], adapter: str | None) -> list[int]:
    found, last = [], first_digest(adapter)
    for token in tokens:
        last = digest(last, token)
        found.append(last)
    return found


def next_token(last_digest: int) -> int:
    return last_digest // 7 % TOKENS


def told_alone(prompt: tuple[int, ...], adapter: str | None, count: int) -> list[int]:
    """What the pretended model answers to a request that has it for itself."""
    tokens, last = list(prompt), digests(list(prompt), adapter)[-1]
    for _ in range(count):
        tokens.append(next_token(last))
        last = digest(last, tokens[-1])
    return tokens[len(prompt) :]


def make_request(name: str, prompt: list[int], new: int, adapter: str | None = None) -> Request:
    return Request(name, tuple(prompt), SamplingParameters(new), Times(0.0), adapter)


@dataclass
class Server:
    """An engine without tensors."""

    scheduler: Scheduler
    store: dict[tuple[int, int], int] = field(default_factory=dict)
    ended: list[Request] = field(default_factory=list)
    preemptions: int = 0
    tokens: int = 0

    @classmethod
    def of(
        cls,
        num_blocks: int,
        block_size: int,
        budget: int = 64,
        max_running: int = 8,
        manager: type[BlockManager] = BlockManager,
        scheduler: type[Scheduler] = Scheduler,
        share: bool = True,
    ) -> Server:
        return cls(scheduler(manager(num_blocks, block_size, share), budget, max_running))

    def add(self, *given, **more) -> Request:
        request = make_request(*given, **more)
        self.scheduler.add(request)
        return request

    def step(self, draft=None) -> Plan:
        """One step: plan, check, copy, write, read, draw, and account."""
        if draft is not None:
            for request in self.scheduler.running:
                draft(request)
        plan = self.scheduler.schedule()
        check_plan(self.scheduler, plan)
        for source, target in plan.copies:
            for place in range(self.scheduler.blocks.block_size):
                self.store[target, place] = self.store.get((source, place), 0)
        for work in plan.work:
            self.write(work)
        right = {work.request.id: self.read(work) for work in plan.work}
        for work in plan.work:
            self.scheduler.computed(work, right[work.request.id])
            request = work.request
            if request.num_told >= request.parameters.max_new_tokens:
                self.scheduler.finish(request, "length")
                self.ended.append(request)
        self.preemptions += len(plan.preempted)
        self.tokens += plan.num_tokens
        check_blocks(self.scheduler)
        return plan

    def run(self) -> list[Plan]:
        plans = []
        while self.scheduler.running or self.scheduler.waiting:
            assert len(plans) < MOST_STEPS, "somebody waits for ever"
            plans.append(self.step())
        return plans

    def write(self, work) -> None:
        size, blocks = self.scheduler.blocks.block_size, work.request.table.blocks
        tokens = [*work.request.tokens, *work.request.drafts]
        known = digests(tokens[: work.start + work.count], work.request.adapter)
        for position in range(work.start, work.start + work.count):
            block = blocks[position // size]
            assert self.scheduler.blocks.blocks[block].ref_count == 1, "written where others read"
            self.store[block, position % size] = known[position]

    def read(self, work) -> int:
        """Reads through the block table what attention would, and draws where it is asked to."""
        request, size = work.request, self.scheduler.blocks.block_size
        tokens = [*request.tokens, *request.drafts]
        known = digests(tokens, request.adapter)
        for position in range(work.start + work.count):
            found = self.store[request.table.blocks[position // size], position % size]
            assert found == known[position], "another text's keys and values were read"
        right, first = 0, work.start + work.count - work.samples
        for place in range(work.samples):
            at = first + place
            token = next_token(self.store[request.table.blocks[at // size], at % size])
            request.tokens.append(token)
            if request.num_told == request.parameters.max_new_tokens:
                break
            if place >= len(request.drafts) or request.drafts[place] != token:
                break
            right += 1
        return right


def check_plan(scheduler: Scheduler, plan: Plan) -> None:
    assert plan.num_tokens <= scheduler.budget
    assert len(scheduler.running) <= scheduler.max_running
    assert len({work.request.id for work in plan.work}) == len(plan.work)
    assert all(work.count > 0 for work in plan.work), "a request without a token to compute"
    if scheduler.running or scheduler.waiting:
        assert plan.work, "requests are here and nothing is computed"
    for request in plan.preempted:
        assert request not in scheduler.running and not request.table.blocks


def check_blocks(scheduler: Scheduler) -> None:
    """What holds between any two steps."""
    manager = scheduler.blocks
    held = Counter(b for request in scheduler.running for b in request.table.blocks)
    for number, block in enumerate(manager.blocks):
        assert block.ref_count == held[number], "a count that is not the number of tables"
        assert (number in manager.free) == (block.ref_count == 0)
        assert block.key is None or manager.found[block.key] == number
    assert manager.used + len(manager.free) == manager.num_blocks
    numbers = {ROOT} | {manager.blocks[b].number for b in manager.found.values()}
    for key, number in manager.found.items():
        assert manager.blocks[number].key == key
        assert key[0] in numbers, "a block whose beginning is gone can never be found"
    for request in scheduler.running:
        needed = manager.blocks_for(request.num_computed_tokens)
        assert len(request.table.blocks) == needed, "blocks are held for nothing"
        assert request.num_computed_tokens < len(request.tokens)
    for request in scheduler.waiting:
        assert not request.table.blocks and request.num_computed_tokens == 0


def random_case(
    seed: int,
    manager: type[BlockManager] = BlockManager,
    scheduler: type[Scheduler] = Scheduler,
) -> Server:
    """Requests that come, fork, guess and leave, until none is left; AssertionError where an
    invariant breaks or an answer is not what it would be alone."""
    chance = random.Random(seed)
    running = chance.randint(2, 5)
    size = chance.randint(1, 4)
    server = Server.of(
        num_blocks=-(-16 // size) + chance.choice([0, 0, 0, 1, 2, 6]),  # 16 places: the largest
        block_size=size,
        budget=running + chance.randint(0, 12),
        max_running=running,
        manager=manager,
        scheduler=scheduler,
    )
    left, made = chance.randint(1, 7), []
    drafting = chance.random() < 0.4

    def draft(request: Request) -> None:
        most = request.parameters.max_new_tokens - request.num_told - 1
        if request.num_computed_tokens == len(request.tokens) - 1 and most > 0:
            good = told_alone(tuple(request.tokens), request.adapter, most)
            guess = [t if chance.random() < 0.7 else chance.randrange(TOKENS) for t in good]
            request.drafts = guess[: chance.randint(0, 4)]

    for _ in range(MOST_STEPS):
        here = [r for r in made if r.status is not Status.FINISHED]
        if not left and not here:
            break
        if left and chance.random() < 0.8:
            left -= 1
            old = chance.choice(made).tokens if made and chance.random() < 0.6 else []
            prompt = old[: chance.randint(0, 8)] + [chance.randrange(TOKENS) for _ in range(3)]
            request = make_request(
                str(len(made)), prompt[:9], chance.randint(1, 8), chance.choice([None, "a", "b"])
            )
            server.scheduler.add(request)
            made.append(request)
        elif here and chance.random() < 0.06:
            request = chance.choice(here)
            server.scheduler.finish(request, "cancelled")
        elif here and chance.random() < 0.08:
            parent = chance.choice(here)
            if len(parent.tokens) < 12:
                tokens = parent.prompt if chance.random() < 0.5 else parent.tokens
                child = make_request(str(len(made)), list(tokens), 4, parent.adapter)
                server.scheduler.fork(parent, child)
                made.append(child)
        server.step(draft if drafting else None)
    else:
        raise AssertionError("somebody waits for ever")
    assert server.scheduler.blocks.used == 0, "blocks are held and nobody is here"
    for request in made:
        alone = told_alone(request.prompt, request.adapter, request.parameters.max_new_tokens)
        complete = request.finish_reason == "length"
        assert request.told == (alone if complete else alone[: request.num_told])
        assert complete or request.finish_reason == "cancelled"
    return server
