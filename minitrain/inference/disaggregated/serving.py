"""Asks in, answers out: on ranks that prefill and ranks that decode, or on ranks that do both.

    apart = serve_apart(model, asks, prefill_ranks=1, decode_ranks=1)
    both = serve_together(model, asks, ranks=2, chunk=64)
    summary(apart.told, target).goodput, summary(both.told, target).goodput

Both on this machine's processes, or with an `Emulation` on as many devices of an emulated fabric:
the same loops, tokens and messages, on another clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minitrain.errors import InputError
from minitrain.inference.disaggregated.emulated import Emulation, PacedRunner
from minitrain.inference.disaggregated.inbox import Wire, open_inbox
from minitrain.inference.disaggregated.pages import page_bytes
from minitrain.inference.disaggregated.roles import Job, Record, Stage, decode, prefill, together
from minitrain.inference.disaggregated.sending import Outgoing
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
    """What every request was told, and when: `told` is for `load.goodput.summary`.

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
) -> Served:
    """`sampling` for all, but for `max_new_tokens`; request i draws by seed + i."""
    for what, count in (("prefill_ranks", prefill_ranks), ("decode_ranks", decode_ranks)):
        if count < 1:
            raise InputError(
                f"{what} is {count}: each half needs a rank of its own, give 1 or more"
            )
    jobs = jobs_of(asks, sampling, prefill_ranks, decode_ranks)
    args = (model, jobs, prefill_ranks, pool, emulation)
    ranks = prefill_ranks + decode_ranks
    fabric = fabric_of(model, pool, emulation)
    return served(jobs, launch(rank_apart, *args, ranks=ranks, fabric=fabric, timeout=timeout))


def serve_together(
    model: Transformer,
    asks: Sequence[Ask],
    ranks: int = 2,
    chunk: int = 64,
    pool: Pool = POOL,
    sampling: SamplingParameters = GREEDY,
    emulation: Emulation | None = None,
    timeout: float = 300.0,
) -> Served:
    """The same on as many ranks, each with whole requests; steps of `chunk` tokens at most."""
    jobs = jobs_of(asks, sampling, ranks, 1)
    args = (model, jobs, replace(pool, budget=chunk), emulation)
    fabric = fabric_of(model, pool, emulation)
    return served(jobs, launch(rank_together, *args, ranks=ranks, fabric=fabric, timeout=timeout))


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
    prefill_ranks: int,
    pool: Pool,
    emulation: Emulation | None,
) -> Record:
    stage = Stage(group, engine_of(group, model, pool, emulation))
    own = group.rank - prefill_ranks
    if own < 0:
        targets = range(prefill_ranks, group.size)
        outgoing = [Outgoing(group, stage.engine, target) for target in targets]
        return prefill(stage, jobs[group.rank :: prefill_ranks], outgoing)
    mine = [job for job in jobs if job.target == own]
    draws = {job.number: not job.parameters.greedy for job in jobs}
    wires = [Wire(group, stage.engine.runner.cache, rank, draws) for rank in range(prefill_ranks)]
    return decode(stage, mine, open_inbox(group, wires), prefill_ranks)


def rank_together(
    group: Group,
    model: Transformer,
    jobs: Sequence[Job],
    pool: Pool,
    emulation: Emulation | None,
) -> Record:
    return together(
        Stage(group, engine_of(group, model, pool, emulation)), jobs[group.rank :: group.size]
    )


def engine_of(group: Group, model: Transformer, pool: Pool, emulation: Emulation | None) -> Engine:
    engine = Engine(model, pool.num_blocks, pool.block_size, pool.budget, pool.max_running)
    if emulation is not None:
        engine.runner = PacedRunner(engine.runner, emulation, group.clock)
    return engine


def served(jobs: Sequence[Job], records: Sequence[Record]) -> Served:
    """All ranks' records as one; of a request the first token's rank comes before the others'."""
    answers, told = [], []
    for job in sorted(jobs, key=lambda job: job.number):
        own = [record for record in records if job.number in record.tokens]
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
