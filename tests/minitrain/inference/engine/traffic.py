"""Random traffic for the scheduler and the block manager, over a store that only pretends.

In a place of a block the store keeps a digest of the text up to there; the pretended model reads
all places of a text through its block table, and answers from what it finds. So a place that holds
another text's digest is found at once, and an answer that depends on company is another answer.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from minitrain.inference.cache.blocks import GONE, ROOT, BlockManager
from minitrain.inference.engine.request import Request, Status, Times
from minitrain.inference.engine.scheduler import Plan
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.proposer import ROOT as ROOT_NODE
from minitrain.inference.speculation.proposer import Draft
from minitrain.inference.speculation.scheduler import DraftScheduler, draft_of

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

    scheduler: DraftScheduler
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
        scheduler: type[DraftScheduler] = DraftScheduler,
        share: bool = True,
        window: int | None = None,
    ) -> Server:
        blocks = manager(num_blocks, block_size, share, window)
        return cls(scheduler(blocks, budget, max_running))

    def add(self, *given, **more) -> Request:
        request = make_request(*given, **more)
        self.scheduler.add(request)
        return request

    def step(self, draft=None) -> Plan:
        """One step: plan, check, copy, write, read, draw, and account."""
        if draft is not None:
            drafts = {one: draft(one) for one in self.scheduler.running}
            self.scheduler.drafts = {one: found for one, found in drafts.items() if found}
        plan = self.scheduler.schedule()
        check_plan(self.scheduler, plan)
        for source, target in plan.copies:
            for place in range(self.scheduler.blocks.block_size):
                self.store[target, place] = self.store.get((source, place), 0)
        for work in plan.work:
            self.write(work)
        kept = {work.request.id: self.read(work) for work in plan.work}
        for work in plan.work:
            self.scheduler.computed(work, len(kept[work.request.id]))
            request = work.request
            if request.num_left <= 0:
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
        for place, value in enumerate(texts_of(work)[work.start :], work.start):
            block = blocks[place // size]
            assert self.scheduler.blocks.blocks[block].ref_count == 1, "written where others read"
            self.store[block, place % size] = value

    def read(self, work) -> list[int]:
        """Reads through the block table what attention would, and draws where it is asked to; the
        nodes of the draft that were drawn, which are moved together."""
        request, known = work.request, texts_of(work)
        window = self.scheduler.blocks.window
        read_from = 0 if window is None else max(0, work.start - window + 1)
        for place, wanted in enumerate(known[read_from:], read_from):
            found = self.store[self.slot(request, place)]
            assert found == wanted, "another text's keys and values were read"
        first, path = work.start + work.count - len(draft_of(work)), []
        under, at = draft_of(work).children(), ROOT_NODE
        while work.samples:
            token = next_token(self.store[self.slot(request, first + at)])
            request.tokens.append(token)
            if request.num_left == 0 or (at, token) not in under:
                break
            at = under[at, token]
            path.append(at)
        way = [self.store[self.slot(request, first + node)] for node in path]
        for place, value in enumerate(way, first):
            self.store[self.slot(request, place)] = value
        return path

    def slot(self, request: Request, place: int) -> tuple[int, int]:
        size = self.scheduler.blocks.block_size
        return request.table.blocks[place // size], place % size


def texts_of(work) -> list[int]:
    """The digest that stands in each place up to the work's end: a draft's node's is its way's."""
    known = digests([*work.request.tokens][: work.start + work.count], work.request.adapter)
    draft = draft_of(work)
    known = known[: work.start + work.count - len(draft)]
    nodes = []
    for token, parent in zip(draft.tokens, draft.parents):
        nodes.append(digest(nodes[parent] if parent >= 0 else known[-1], token))
    return known + nodes


def check_plan(scheduler: DraftScheduler, plan: Plan) -> None:
    assert plan.num_tokens <= scheduler.budget
    assert len(scheduler.running) <= scheduler.max_running
    assert len({work.request.id for work in plan.work}) == len(plan.work)
    assert all(work.count > 0 for work in plan.work), "a request without a token to compute"
    if scheduler.running or scheduler.waiting:
        assert plan.work, "requests are here and nothing is computed"
    for request in plan.preempted:
        assert request not in scheduler.running and not request.table.blocks


def check_blocks(scheduler: DraftScheduler) -> None:
    """What holds between any two steps."""
    manager = scheduler.blocks
    tables = [request.table for request in scheduler.running]
    held = Counter(block for table in tables for block in table.blocks[table.gone :])
    assert GONE not in held, "a block that is read has been given back"
    for number, block in enumerate(manager.blocks):
        assert block.ref_count == held[number], "a count that is not the number of tables"
        assert (number in manager.free) == (block.ref_count == 0)
        assert block.key is None or manager.found[block.key] == number
    assert manager.used + len(manager.free) == manager.num_blocks
    numbers = {ROOT} | {manager.blocks[b].number for b in manager.found.values()}
    for key, number in manager.found.items():
        assert manager.blocks[number].key == key
        if manager.window is None:  # a window gives beginnings back first
            assert key[0] in numbers, "a block whose beginning is gone can never be found"
    for request in scheduler.running:
        needed = manager.blocks_for(request.num_computed_tokens)
        assert len(request.table.blocks) == needed, "blocks are held for nothing"
        gone = manager.out_of_window(request.num_computed_tokens)
        assert request.table.gone == gone, "what has left the window is held for nothing"
        assert request.table.blocks[:gone] == [GONE] * gone
        assert request.num_computed_tokens < len(request.tokens)
    for request in scheduler.waiting:
        assert not request.table.blocks and request.num_computed_tokens == 0


def random_tree(good: list[int], chance: random.Random) -> Draft:
    """Around the right answer: tokens that are spoilt, and rivals before and after them."""
    tokens, parents, under = [], [], ROOT_NODE
    for token in good:
        token = token if chance.random() < 0.7 else chance.randrange(TOKENS)
        rival = [] if chance.random() < 0.5 else [(token + 1) % TOKENS]
        level = [*rival, token] if chance.random() < 0.5 else [token, *rival]
        parents += [under] * len(level)
        under = len(tokens) + level.index(token)
        tokens += level
    return Draft(tuple(tokens), tuple(parents))


def random_case(
    seed: int,
    manager: type[BlockManager] = BlockManager,
    scheduler: type[DraftScheduler] = DraftScheduler,
) -> Server:
    """Requests that come, fork, guess and leave, until none is left; AssertionError where an
    invariant breaks or an answer is not what it would be alone."""
    chance = random.Random(seed)
    window = random.Random(f"window {seed}").choice([None, None, 1, 2, 3, 5])
    running = chance.randint(2, 5)
    size = chance.randint(1, 4)
    spare, budget = chance.choice([0, 0, 0, 1, 2, 6]), running + chance.randint(0, 12)
    most = BlockManager(1, size, window=window).most_blocks(16, budget)  # 16 places: the largest
    server = Server.of(
        num_blocks=most + spare,
        block_size=size,
        budget=budget,
        max_running=running,
        manager=manager,
        scheduler=scheduler,
        window=window,
    )
    left, made = chance.randint(1, 7), []
    drafting = chance.random() < 0.4

    def draft(request: Request) -> Draft | None:
        most = request.num_left - 1
        if request.num_computed_tokens == len(request.tokens) - 1 and most > 0:
            good = told_alone(tuple(request.tokens), request.adapter, most)
            return random_tree(good, chance).first(min(most, chance.randint(0, 5)))
        return None

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
        assert request.generated == (alone if complete else alone[: len(request.generated)])
        assert complete or request.finish_reason == "cancelled"
    return server


# Prompts of random tokens


def prompts(count: int, most: int = 16, vocabulary: int = 61, seed: int = 0) -> list[list[int]]:
    """Some begin alike."""
    chance = random.Random(seed)
    common = chance.choices(range(3, vocabulary), k=10)
    return [
        common[: chance.choice([0, 0, 5, 10])]
        + chance.choices(range(3, vocabulary), k=chance.randint(1, most - 10))
        for _ in range(count)
    ]
