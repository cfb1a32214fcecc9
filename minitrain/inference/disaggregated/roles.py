"""The three loops: a rank that prefills, one that decodes, and one that does both.

All have their jobs from the start, as if a router sent each at its time: request i goes to prefill
rank i mod P and then to decode rank (i div P) mod D, regardless of load.

All that an engine knows of a request is its tokens, its parameters, its generator's state and its
pages. With these another engine continues it as the first would have, and from then on treats it
like its own: a preempted request is recomputed there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.inference.disaggregated.transfer import (
    EmulatedInbox,
    Kind,
    Outgoing,
    Piece,
    ThreadedInbox,
    put,
)
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.measure.clock import to_time_of_day
from minitrain.ranks.group import Group


@dataclass(frozen=True)
class Job:
    """A request: its number, arrival time (seconds from the start), prompt and settings."""

    number: int
    at: float
    prompt: tuple[int, ...]
    parameters: SamplingParameters
    target: int = 0  # its decode rank


@dataclass
class Record:
    """The tokens that one rank generated; times in seconds from the start."""

    tokens: dict[int, list[int]] = field(default_factory=dict)  # by request
    times: dict[int, list[float]] = field(default_factory=dict)  # of each token
    page_bytes: int = 0  # sent, without headers


class Stage:
    """An engine on a rank; its clock starts at 0 when all ranks are ready."""

    def __init__(self, group: Group, engine: Engine) -> None:
        self.group, self.engine = group, engine
        self.start = common_start(group)
        self.record = Record()
        engine.clock = self.now

    def now(self) -> float:
        return self.group.now() - self.start

    def step(self) -> list:
        """Steps the engine and records its outputs."""
        outputs = self.engine.step()
        for output in outputs:
            if output.drawn is not None:
                number = int(output.id)
                self.record.tokens.setdefault(number, []).append(output.drawn.token)
                self.record.times.setdefault(number, []).append(self.now())
        return outputs

    def admit(self, jobs: deque[Job]) -> None:
        """Adds requests that have arrived; when idle, waits for the next one."""
        if not self.engine.busy and jobs:
            seconds = max(0.0, jobs[0].at - self.now())
            self.group.clock.advance(seconds) if self.group.clock.emulated else time.sleep(seconds)
        while jobs and jobs[0].at <= self.now():
            job = jobs.popleft()
            self.engine.add(job.prompt, job.parameters, id=str(job.number))


def common_start(group: Group) -> float:
    """A common start time for all ranks, on each one's own clock.

    Ranks leave a barrier milliseconds apart; the machine's wall clock is the same for all.
    """
    group.barrier()
    begun = torch.tensor([time.time()], dtype=torch.float64, device=group.device)
    group.broadcast(begun)
    if group.clock.emulated:
        return group.now()
    return begun.item() - to_time_of_day(group.now)


def together(stage: Stage, jobs: Iterable[Job]) -> Record:
    """Prefill and decode in the same steps: prompts get the budget left by decoding."""
    jobs = deque(jobs)
    while jobs or stage.engine.busy:
        stage.admit(jobs)
        stage.step()
    return stage.record


def prefill(stage: Stage, jobs: Iterable[Job], outgoing: Sequence[Outgoing]) -> Record:
    """Reads prompts and draws first tokens; `outgoing` has one entry per decode rank."""
    engine, jobs = stage.engine, deque(jobs)
    targets = {str(job.number): outgoing[job.target] for job in jobs}
    while jobs or engine.busy:
        stage.admit(jobs)
        first = {output.id: output for output in stage.step()}
        for id, output in first.items():
            if output.finish_reason is not None:
                targets[id].drop(int(id))
        for request in list(engine.scheduler.running):
            if request.id in first:
                targets[request.id].last(request, first[request.id].drawn.token)
                engine.cancel(request.id)  # only here; its pages stay findable
            else:
                targets[request.id].grown(request)
    for each in outgoing:
        each.end()
    stage.record.page_bytes = sum(each.page_bytes for each in outgoing)
    return stage.record


@dataclass
class Handover:
    """A prompt prefilled elsewhere, as its pages arrive; `token` comes with the last ones."""

    number: int
    prompt: tuple[int, ...]
    parameters: SamplingParameters
    pieces: list[tuple[int, Tensor]] = field(default_factory=list)  # (first page, pages)
    token: int = -1
    state: Tensor | None = None

    def take(self, piece: Piece) -> None:
        if piece.pages is not None:
            self.pieces.append((piece.first, piece.pages))
        self.token, self.state = piece.token, piece.state


def decode(
    stage: Stage, jobs: Sequence[Job], inbox: ThreadedInbox | EmulatedInbox, senders: int
) -> Record:
    """Decodes prompts that were prefilled elsewhere, in the order of their completion."""
    engine = stage.engine
    given = {job.number: Handover(job.number, job.prompt, job.parameters) for job in jobs}
    ready: deque[Handover] = deque()
    while senders or ready or engine.busy:
        for piece in inbox.arrived(wait=not (ready or engine.busy)):
            if piece.kind == Kind.END:
                senders -= 1
            elif piece.kind == Kind.DROP:
                del given[piece.number]
            else:
                given[piece.number].take(piece)
                if piece.kind == Kind.LAST:
                    ready.append(given.pop(piece.number))
        while ready and adopt(engine, ready[0]):
            ready.popleft()
        if engine.busy:
            stage.step()
        elif ready:
            raise InputError(
                f"a prompt of {len(ready[0].prompt)} tokens does not fit into an empty pool of "
                f"{engine.scheduler.blocks.num_blocks} blocks: give more"
            )
    return stage.record


def adopt(engine: Engine, given: Handover) -> bool:
    """Continues a request here. False if there is no room for it yet; InputError if there never
    will be."""
    scheduler, blocks, computed = engine.scheduler, engine.scheduler.blocks, len(given.prompt)
    needed = blocks.blocks_for(computed + 1) - blocks.out_of_window(computed)
    full = len(scheduler.running) == scheduler.max_running or scheduler.waiting
    if full or needed > len(blocks.free):
        return False
    request = engine.requests[engine.add(given.prompt, given.parameters, id=str(given.number))]
    request.tokens.append(given.token)
    if request.text is not None:
        request.text.push(given.token)
    if given.state is not None:
        request.generator.set_state(given.state)
    key = request.adapter_key
    table, known = blocks.admit(request.tokens, key, computed, elsewhere=computed)
    scheduler.waiting.remove(request)
    scheduler.start(request, table, computed)
    for first, pages in given.pieces:
        here = max(known // blocks.block_size, table.gone)  # maybe shared, or outside the window
        new = max(0, here - first)
        own = table.blocks[first + new : first + pages.shape[3]]
        if own:
            put(engine.runner.cache, own, pages[:, :, :, new:])
    blocks.commit(table, request.tokens, key, computed)
    return True
