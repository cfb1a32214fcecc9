"""Requests in, answers out: on separate prefill and decode ranks, or on ranks that do both.

    apart = serve_apart(model, asks, prefill_ranks=1, decode_ranks=1)
    both = serve_together(model, asks, ranks=2, chunk=64)
    summary(apart.outcomes, target).goodput, summary(both.outcomes, target).goodput

Both run on this machine's processes, or with an `Emulation` on the devices of an emulated fabric:
the same loops, tokens and messages, on another clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from minitrain.errors import InputError, check_whole
from minitrain.inference.disaggregated.emulated import Emulation, PacedRunner
from minitrain.inference.disaggregated.roles import Job, Record, Stage, decode, prefill, together
from minitrain.inference.disaggregated.transfer import Outgoing, Wire, open_inbox
from minitrain.inference.engine.engine import Engine
from minitrain.inference.engine.request import Times
from minitrain.inference.load import Ask, Outcome
from minitrain.inference.parameters import SamplingParameters
from minitrain.model.transformer import Transformer
from minitrain.ranks.group import Group
from minitrain.ranks.launch import launch


@dataclass(frozen=True)
class Pool:
    """Per rank: pages, tokens per page, and token budget of a prefill-only step."""

    num_blocks: int = 512
    block_size: int = 16
    budget: int = 512
    max_running: int = 64


POOL, GREEDY = Pool(), SamplingParameters()


@dataclass(frozen=True)
class Served:
    """The answers and, for `load.summary`, their outcomes; `page_bytes`: bytes of keys and values
    sent."""

    answers: list[list[int]]
    outcomes: list[Outcome]
    page_bytes: int = 0


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
    """`sampling` is for all, except `max_new_tokens`; request i uses seed + i."""
    check_whole("prefill_ranks", prefill_ranks)
    check_whole("decode_ranks", decode_ranks)
    jobs = jobs_of(asks, sampling, prefill_ranks, decode_ranks)
    args, ranks = (rank_apart, model, jobs, prefill_ranks), prefill_ranks + decode_ranks
    return served(jobs, launched(args, ranks, pool, emulation, timeout))


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
    """`ranks` that each do both, with whole requests, in steps of at most `chunk` tokens."""
    jobs = jobs_of(asks, sampling, ranks, 1)
    args, pool = (rank_together, model, jobs), replace(pool, budget=chunk)
    return served(jobs, launched(args, ranks, pool, emulation, timeout))


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


def rank_apart(
    group: Group,
    model: Transformer,
    jobs: Sequence[Job],
    readers: int,
    pool: Pool,
    emulation: Emulation | None,
) -> Record:
    """The first `readers` ranks prefill."""
    stage = Stage(group, engine_of(group, model, pool, emulation))
    if group.rank < readers:
        outgoing = [Outgoing(group, stage.engine, to) for to in range(readers, group.size)]
        return prefill(stage, jobs[group.rank :: readers], outgoing)
    mine = [job for job in jobs if job.target == group.rank - readers]
    draws = {job.number: not job.parameters.greedy for job in jobs}
    cache = stage.engine.runner.cache
    wires = [Wire(group, cache, source, draws) for source in range(readers)]
    return decode(stage, mine, open_inbox(group, wires), readers)


def rank_together(
    group: Group,
    model: Transformer,
    jobs: Sequence[Job],
    pool: Pool,
    emulation: Emulation | None,
) -> Record:
    stage = Stage(group, engine_of(group, model, pool, emulation))
    return together(stage, jobs[group.rank :: group.size])


def engine_of(group: Group, model: Transformer, pool: Pool, emulation: Emulation | None) -> Engine:
    engine = Engine(model, pool.num_blocks, pool.block_size, pool.budget, pool.max_running)
    if emulation is not None:
        engine.runner = PacedRunner(engine.runner, emulation, group.clock)
    return engine


def launched(
    args: Sequence[Any], ranks: int, pool: Pool, emulation: Emulation | None, timeout: float
) -> list[Record]:
    model = args[1]
    fabric = None if emulation is None else emulation.fabric_for(model, pool.block_size)
    return launch(*args, pool, emulation, ranks=ranks, fabric=fabric, timeout=timeout)


def served(jobs: Sequence[Job], records: Sequence[Record]) -> Served:
    """Merges all ranks' records; a request's first-token rank comes before its others."""
    answers, outcomes = [], []
    for job in sorted(jobs, key=lambda job: job.number):
        own = [record for record in records if job.number in record.tokens]
        tokens = [token for record in own for token in record.tokens[job.number]]
        at = [time for record in own for time in record.times[job.number]]
        answers.append(tokens)
        outcomes.append(Outcome(Times(job.at, job.at, at, at[-1]), len(job.prompt), len(tokens)))
    return Served(answers, outcomes, sum(record.page_bytes for record in records))
