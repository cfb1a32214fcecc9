"""The three loops: a rank that reads prompts, one that goes on with them, and one that does both.

All have their jobs from the beginning, as if a router told them each at its time: request i is read
by prefill unit i mod P, and goes on at decode unit (i div P) mod D. It looks at nothing else. A
unit is a rank, or several that cut the model (unit.py) and go through these loops in step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from minitrain.errors import InputError
from minitrain.inference.disaggregated.adoption import Handover, adopt
from minitrain.inference.disaggregated.inbox import Inbox, Piece
from minitrain.inference.disaggregated.sending import Kind, Outgoing
from minitrain.inference.disaggregated.unit import Unit
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.measure.clock import to_time_of_day
from minitrain.measure.traffic import Interval
from minitrain.ranks.group import Group


@dataclass(frozen=True)
class Job:
    """A request: which one, when it comes (seconds from the beginning), and what it asks for."""

    number: int
    at: float
    prompt: tuple[int, ...]
    parameters: SamplingParameters
    target: int = 0  # where it goes on, of the units that decode


@dataclass
class Record:
    """The events of one rank, in seconds from the beginning."""

    tokens: dict[int, list[int]] = field(default_factory=dict)  # told here, by request
    times: dict[int, list[float]] = field(default_factory=dict)  # of each of them
    steps: list[Interval] = field(default_factory=list)
    received: list[tuple[int, float, float]] = field(default_factory=list)  # from, begin, end
    page_bytes: int = 0  # sent, without headers


class Stage:
    """An engine on a rank, whose clock shows 0 when all ranks are there."""

    def __init__(self, group: Group, unit: Unit, engine: Engine) -> None:
        self.group, self.unit, self.engine = group, unit, engine
        self.start = common_start(group)
        self.record = Record()
        engine.clock = self.now

    def now(self) -> float:
        return self.group.now() - self.start

    def sleep_until(self, at: float) -> None:
        seconds = max(0.0, at - self.now())
        self.group.clock.advance(seconds) if self.group.clock.emulated else time.sleep(seconds)

    def step(self) -> list:
        """The engine's outputs, entered."""
        began = self.now()
        outputs = self.engine.step()
        self.record.steps.append((began, self.now()))
        for output in outputs:
            if output.drawn is not None:
                number = int(output.id)
                self.record.tokens.setdefault(number, []).append(output.drawn.token)
                self.record.times.setdefault(number, []).append(self.now())
        return outputs

    def welcome(self, jobs: deque[Job]) -> None:
        """Admits requests whose time has come; with nothing else to do, waits for the next one."""
        if not self.engine.busy and jobs:
            self.sleep_until(jobs[0].at)
        now = self.now()
        (due,) = self.unit.least([sum(job.at <= now for job in jobs)])
        for _ in range(due):
            job = jobs.popleft()
            self.engine.add(job.prompt, job.parameters, id=str(job.number))


def common_start(group: Group) -> float:
    """The same moment on all ranks, as each one's clock shows it.

    Ranks leave a barrier milliseconds apart; the machine's time of day is the same for all.
    """
    group.barrier()
    begun = torch.tensor([time.time()], dtype=torch.float64, device=group.device)
    group.broadcast(begun)
    if group.clock.emulated:
        return group.now()
    return begun.item() - to_time_of_day(group.now)


def together(stage: Stage, jobs: Iterable[Job]) -> Record:
    """Prompts and answers in the same steps: a prompt gets what the answers leave of the budget."""
    jobs = deque(jobs)
    while jobs or stage.engine.busy:
        stage.welcome(jobs)
        stage.step()
    return stage.record


def prefill(stage: Stage, jobs: Iterable[Job], outgoing: Sequence[Outgoing]) -> Record:
    """Reads prompts and tells first tokens; `outgoing` has one for each rank that goes on."""
    engine, jobs, targets = stage.engine, deque(jobs), {}
    for job in jobs:
        targets[str(job.number)] = outgoing[job.target % len(outgoing)]
    while jobs or engine.busy:
        stage.welcome(jobs)
        first = {output.id: output for output in stage.step()}
        for id, output in first.items():
            if output.finish_reason is not None:
                targets[id].drop(int(id))
        for request in list(engine.scheduler.running):
            if request.id in first:
                targets[request.id].last(request, first[request.id].drawn.token)
                engine.cancel(request.id)  # here; its pages stay findable
            else:
                targets[request.id].grown(request)
    for each in outgoing:
        each.end()
    stage.record.page_bytes = sum(each.page_bytes for each in outgoing)
    return stage.record


def decode(stage: Stage, jobs: Sequence[Job], inbox: Inbox, senders: int) -> Record:
    """Goes on with prompts that were read elsewhere, in the order in which they are complete."""
    engine = stage.engine
    given = {job.number: Handover(job.number, job.prompt, job.parameters) for job in jobs}
    ready: deque[Handover] = deque()
    while senders or ready or engine.busy:
        for piece in inbox.arrived():
            senders -= piece.kind == Kind.END
            take(stage, piece, given, ready)
        while ready and adopt(engine, ready[0]):
            ready.popleft()
        if engine.busy:
            stage.step()
        elif ready:
            raise InputError(
                f"a prompt of {len(ready[0].prompt)} tokens does not fit into an empty pool of "
                f"{engine.scheduler.blocks.num_blocks} blocks: give more"
            )
        elif senders:
            inbox.wait()
    return stage.record


def take(stage: Stage, piece: Piece, given: dict[int, Handover], ready: deque[Handover]) -> None:
    if piece.pages is not None:
        began, at = (time - stage.start for time in (piece.began, piece.at))
        stage.record.received.append((piece.source, began, at))
    if piece.kind == Kind.DROP:
        del given[piece.number]
    elif piece.kind != Kind.END:
        given[piece.number].take(piece)
        if piece.kind == Kind.LAST:
            ready.append(given.pop(piece.number))
