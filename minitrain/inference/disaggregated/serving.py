"""Asks in, answers out: on ranks that prefill and ranks that decode, or on ranks that do both.

    apart = serve_apart(model, asks, prefill_ranks=1, decode_ranks=1)
    cut = serve_apart(model, asks, prefill_ranks=2, decode_ranks=2, tensor_ranks=2)
    both = serve_together(model, asks, ranks=2, chunk=64)
    summary(apart.told, target).goodput, summary(both.told, target).goodput

Both on this machine's processes, or with an `Emulation` on as many devices of an emulated fabric:
the same loops, tokens and messages, on another clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minitrain.errors import InputError, divide
from minitrain.inference.disaggregated.emulated import Emulation, PacedRunner
from minitrain.inference.disaggregated.inbox import Wire, open_inbox
from minitrain.inference.disaggregated.pages import page_bytes
from minitrain.inference.disaggregated.roles import Job, Record, Stage, decode, prefill, together
from minitrain.inference.disaggregated.sending import Outgoing
from minitrain.inference.disaggregated.unit import AgreedInbox, Unit
from minitrain.inference.engine.engine import Engine
from minitrain.inference.engine.request import Times
from minitrain.inference.load.goodput import Told
from minitrain.inference.load.workload import Ask
from minitrain.inference.parameters import SamplingParameters
from minitrain.measure.traffic import intersection, length, union
from minitrain.model.transformer import Transformer
from minitrain.network.fabric import Fabric
from minitrain.ranks.group import Group
from minitrain.ranks.launch import launch


@dataclass(frozen=True)
class Pool:
    """Each rank's: pages, their tokens, and tokens a step that only reads prompts."""

    num_blocks: int = 512
    block_size: int = 16
    budget: int = 512
    max_running: int = 64


POOL, GREEDY = Pool(), SamplingParameters()


@dataclass(frozen=True)
class Served:
    """The answers and their times; `told` is for `load.goodput.summary`.

    Keys and values of `page_bytes` were under way for `transfer_seconds`, a message at a time; in
    `behind_prefill` of these the sender computed, and in `behind_decode` the receiver did.
    """

    answers: list[list[int]]
    told: list[Told]
    page_bytes: int = 0
    transfer_seconds: float = 0.0
    behind_prefill: float = 0.0
    behind_decode: float = 0.0


def serve_apart(
    model: Transformer,
    asks: Sequence[Ask],
    prefill_ranks: int = 1,
    decode_ranks: int = 1,
    pool: Pool = POOL,
    sampling: SamplingParameters = GREEDY,
    emulation: Emulation | None = None,
    timeout: float = 300.0,
    tensor_ranks: int = 1,
) -> Served:
    """`sampling` for all, but for `max_new_tokens`; request i draws by seed + i. Of each half's
    ranks, `tensor_ranks` at a time cut the model among themselves."""
    for what, count in (("prefill_ranks", prefill_ranks), ("decode_ranks", decode_ranks)):
        if count < 1:
            raise InputError(
                f"{what} is {count}: each half needs a rank of its own, give 1 or more"
            )
    readers = units_in("prefill ranks", prefill_ranks, tensor_ranks, emulation)
    jobs = jobs_of(
        asks, sampling, readers, units_in("decode ranks", decode_ranks, tensor_ranks, emulation)
    )
    args = (model, jobs, readers, pool, emulation, tensor_ranks)
    ranks = prefill_ranks + decode_ranks
    fabric = fabric_of(model, pool, emulation)
    records = launch(rank_apart, *args, ranks=ranks, fabric=fabric, timeout=timeout)
    return served(jobs, records, tensor_ranks)


def serve_together(
    model: Transformer,
    asks: Sequence[Ask],
    ranks: int = 2,
    chunk: int = 64,
    pool: Pool = POOL,
    sampling: SamplingParameters = GREEDY,
    emulation: Emulation | None = None,
    timeout: float = 300.0,
    tensor_ranks: int = 1,
) -> Served:
    """The same on as many ranks, each (or each `tensor_ranks` of them) with whole requests; steps
    of `chunk` tokens at most."""
    jobs = jobs_of(asks, sampling, units_in("ranks", ranks, tensor_ranks, emulation), 1)
    args = (model, jobs, replace(pool, budget=chunk), emulation, tensor_ranks)
    fabric = fabric_of(model, pool, emulation)
    records = launch(rank_together, *args, ranks=ranks, fabric=fabric, timeout=timeout)
    return served(jobs, records, tensor_ranks)


def units_in(what: str, ranks: int, tensor_ranks: int, emulation: Emulation | None) -> int:
    if tensor_ranks < 1:
        raise InputError(f"tensor_ranks is {tensor_ranks}: give 1 (the whole model) or more")
    if tensor_ranks > 1 and emulation is not None:
        raise InputError(
            "an emulated step takes the time of one device with the whole model: give "
            "tensor_ranks=1, or no emulation"
        )
    return divide(what, ranks, tensor_ranks, "tensor_ranks")


def jobs_of(
    asks: Sequence[Ask], sampling: SamplingParameters, readers: int, targets: int
) -> list[Job]:
    if not asks:
        raise InputError("nothing is asked: give one request or more")
    return [
        Job(
            number,
            ask.at,
            tuple(ask.prompt),
            replace(sampling, max_new_tokens=ask.new_tokens, seed=sampling.seed + number),
            place // readers % targets,
        )
        for place, (number, ask) in enumerate(sorted(enumerate(asks), key=lambda one: one[1].at))
    ]


def fabric_of(model: Transformer, pool: Pool, emulation: Emulation | None) -> Fabric | None:
    if emulation is None:
        return None
    return emulation.fabric_for(page_bytes(model, pool.block_size), pool.block_size)


def rank_apart(
    group: Group,
    model: Transformer,
    jobs: Sequence[Job],
    readers: int,
    pool: Pool,
    emulation: Emulation | None,
    tensor_ranks: int,
) -> Record:
    """The first `readers` units prefill."""
    unit = Unit.of(group, tensor_ranks)
    stage = Stage(group, unit, engine_of(group, unit, model, pool, emulation))
    own = unit.number - readers
    if own < 0:
        targets = [unit.peer(other) for other in range(readers, group.size // tensor_ranks)]
        outgoing = [Outgoing(group, stage.engine, target) for target in targets]
        return prefill(stage, jobs[unit.number :: readers], outgoing)
    mine = [job for job in jobs if job.target == own]
    draws = {job.number: not job.parameters.greedy for job in jobs}
    sources = [unit.peer(reader) for reader in range(readers)]
    wires = [Wire(group, stage.engine.runner.cache, source, draws) for source in sources]
    inbox = AgreedInbox(open_inbox(group, wires), sources, unit)
    return decode(stage, mine, inbox, readers)


def rank_together(
    group: Group,
    model: Transformer,
    jobs: Sequence[Job],
    pool: Pool,
    emulation: Emulation | None,
    tensor_ranks: int,
) -> Record:
    unit = Unit.of(group, tensor_ranks)
    stage = Stage(group, unit, engine_of(group, unit, model, pool, emulation))
    return together(stage, jobs[unit.number :: group.size // tensor_ranks])


def engine_of(
    group: Group, unit: Unit, model: Transformer, pool: Pool, emulation: Emulation | None
) -> Engine:
    sizes = pool.num_blocks, pool.block_size, pool.budget, pool.max_running
    engine = Engine(unit.cut(model), *sizes, group=unit.group)
    if emulation is not None:
        engine.runner = PacedRunner(engine.runner, emulation, group.clock)
    return engine


def served(jobs: Sequence[Job], records: Sequence[Record], tensor_ranks: int) -> Served:
    """All ranks' records as one; of a request the first token's unit comes before the others'. All
    ranks of a unit are told the same: its first one's times count."""
    answers, told = [], []
    firsts = records[::tensor_ranks]
    for job in sorted(jobs, key=lambda job: job.number):
        own = [record for record in firsts if job.number in record.tokens]
        tokens = [token for record in own for token in record.tokens[job.number]]
        at = [time for record in own for time in record.times[job.number]]
        answers.append(tokens)
        told.append(Told(Times(job.at, job.at, at, at[-1]), len(job.prompt), len(tokens)))
    moved = [(s, r, (b, e)) for r, record in enumerate(records) for s, b, e in record.received]
    busy = [union(record.steps) for record in records]
    return Served(
        answers,
        told,
        sum(record.page_bytes for record in records),
        sum(end - begin for _, _, (begin, end) in moved),
        sum(length(intersection([span], busy[source])) for source, _, span in moved),
        sum(length(intersection([span], busy[target])) for _, target, span in moved),
    )
