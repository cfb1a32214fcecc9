"""Every legal plan of a model on a cluster: those that fit, ranked, and why each loses to the best.

Axes: tp within a node and dividing heads; pp up to the layers; cp for long sequences; dp the rest;
ep dividing experts and data ranks; ZeRO 0 to 3; recomputation; microbatch; one or several chunks.
A plan is dropped if it needs over `USABLE` of the chip's memory (allocator, NCCL, CUDA's own). The
rest are timed with the bubble in closed form, (p-1)/v·(F+B); the best are simulated on the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from minitrain.errors import InputError, check_whole
from minitrain.planning.columns import most_chunks
from minitrain.planning.hardware import Chip, find_chip
from minitrain.planning.run import Model, Plan, Run, make_run
from minitrain.planning.step.memory import peak_memory
from minitrain.planning.step.network import fabric_of
from minitrain.planning.step.step import Step, estimate

USABLE = 0.92  # of the memory: the CUDA context, NCCL's buffers and fragmentation take the rest
SIMULATED = 24  # plans simulated: the best by the closed form


@dataclass(frozen=True)
class Found:
    """The best plans, best first; `reasons[i]` says why number i loses to number 0."""

    steps: list[Step]
    reasons: list[str]
    legal: int
    fitting: int


def search(
    model: Model, chip: Chip | str, gpus: int, seq: int, global_batch: int,
    precision: str = "bf16", per_node: int | None = None, best: int = 5,
) -> Found:  # fmt: skip
    """The `best` fastest plans; if none fits, an InputError names what is short."""
    check_whole("gpus", gpus)
    check_whole("global_batch", global_batch)
    chip = find_chip(chip) if isinstance(chip, str) else chip
    if not chip.memory or not chip.bandwidth:
        raise InputError(f"{chip.name} has no memory size or bandwidth in data/hardware.csv")
    fabric = fabric_of(chip, per_node or chip.per_node)
    runs = list(legal_runs(model, chip, gpus, seq, global_batch, precision, fabric.per_node))
    if not runs:
        raise InputError(
            f"no cut of global_batch {global_batch} over {gpus} gpus is legal: use a batch that "
            f"{gpus} divides, or fewer gpus"
        )
    fitting = [run for run in runs if peak_memory(run).total <= USABLE * chip.memory]
    if not fitting:
        raise InputError(nothing_fits(runs, chip, gpus))
    quick = sorted((estimate(run, fabric, exact=False) for run in fitting), key=lambda s: s.seconds)
    steps = [estimate(step.run, fabric) for step in quick[:SIMULATED]]
    steps = distinct(sorted(steps, key=lambda step: step.seconds))[:best]
    return Found(steps, [why(step, steps[0]) for step in steps], len(runs), len(fitting))


def legal_runs(
    model: Model, chip: Chip, gpus: int, seq: int, batch: int, precision: str, per_node: int
) -> Iterator[Run]:
    for tp, cp, pp in meshes(model, gpus, seq, per_node):
        dp = gpus // (tp * cp * pp)
        if batch % dp:
            continue
        experts, stages = expert_ranks(model, dp * cp), range(4 if dp * cp > 1 else 1)
        for ep, zero, recompute, micro in product(experts, stages, ("none", "full"), (1, 2, 4, 8)):
            if (batch // dp) % micro or (zero == 3 and pp > 1):
                continue  # sharded weights would be gathered for every microbatch of a pipeline
            plan = Plan(
                tp=tp, sp=tp > 1, cp=cp, pp=pp, dp=dp, ep=ep, zero=zero, recompute=recompute,
                precision=precision, micro_batch=micro,
            )  # fmt: skip
            for chunks in sorted({1, most_chunks(plan, model, batch)}):
                kind = "interleaved" if chunks > 1 else "1f1b"
                plan = replace(plan, vpp=chunks, schedule=kind)
                yield make_run(chip, model, plan, seq, batch, "plan", per_node)


def meshes(model: Model, gpus: int, seq: int, per_node: int) -> Iterator[tuple[int, int, int]]:
    """(tp, cp, pp) whose product divides the cluster."""
    longest = max(1, seq // 8192)
    for tp in powers_of_two(min(per_node, model.heads)):
        if model.heads % tp or gpus % tp:
            continue
        for cp in powers_of_two(longest):
            for pp in range(1, model.layers + 1):
                if gpus % (tp * cp * pp) == 0 and seq % cp == 0:
                    yield tp, cp, pp


def expert_ranks(model: Model, data: int) -> list[int]:
    if not model.experts:
        return [1]
    return [n for n in powers_of_two(model.experts) if model.experts % n == 0 and data % n == 0]


def powers_of_two(largest: int) -> list[int]:
    return [2**i for i in range(largest.bit_length())]


def nothing_fits(runs: list[Run], chip: Chip, gpus: int) -> str:
    least = min(peak_memory(run).total for run in runs)
    more = -(-least // (USABLE * chip.memory))
    return (
        f"the model does not fit: its leanest plan needs {least / 2**30:.0f} GiB on each of {gpus} "
        f"{chip.name}, of which {USABLE * chip.memory / 2**30:.0f} GiB are usable: "
        f"use about {more:.0f} times as many, a smaller model, or a chip with more memory"
    )


def distinct(steps: list[Step]) -> list[Step]:
    """Merges plans that differ only in ZeRO's stage and take the same time within 0.1%."""
    kept: list[Step] = []
    for step in steps:
        same = [
            other
            for other in kept
            if replace(other.run.plan, zero=step.run.plan.zero) == step.run.plan
            and abs(other.seconds / step.seconds - 1) < 1e-3
        ]
        if not same:
            kept.append(step)
    return kept


def why(step: Step, best: Step) -> str:
    """Names the parts of a step that take longer in this plan than in the best one."""
    if step is best:
        return "the fastest"
    names = set(step.parts) | set(best.parts)
    more = {n: (step.parts.get(n, 0.0) - best.parts.get(n, 0.0)) / best.seconds for n in names}
    worst = sorted(more, key=more.get, reverse=True)[:2]
    said = [f"{PHRASES.get(n, n)} +{100 * more[n]:.1f}%" for n in worst if more[n] > 5e-4]
    slower = 100 * (step.seconds / best.seconds - 1)
    return f"{slower:.1f}% slower: " + (", ".join(said) or "a little of everything")


PHRASES = {
    "tp": "waiting for tensor-parallel collectives",
    "dp": "waiting for gradients and weights",
    "cp": "waiting for keys and values",
    "ep": "waiting for experts",
    "bubble": "pipeline bubble",
    "recompute": "recomputation",
    "elementwise": "memory-bound kernels",
    "matmul": "smaller matmuls, or layers cut unevenly",
    "contention": "collectives beside computation",
    "optimizer": "the optimizer's unsharded step",
    "send": "sends between stages",
}


def plan_in_words(plan: Plan) -> str:
    """For example, tp 8 · pp 4 x 2 · dp 16 · ZeRO 1 · microbatch 2 · full recompute."""
    words = [f"tp {plan.tp}"] if plan.tp > 1 else []
    words += [f"cp {plan.cp}"] if plan.cp > 1 else []
    words += [f"pp {plan.pp}" + (f" x {plan.vpp}" if plan.vpp > 1 else "")] if plan.pp > 1 else []
    words += [f"dp {plan.dp}"]
    words += [f"ep {plan.ep}"] if plan.ep > 1 else []
    words += [f"ZeRO {plan.zero}"] if plan.zero else []
    words += [f"microbatch {plan.micro_batch}"]
    words += [f"{plan.recompute} recompute"] if plan.recompute != "none" else []
    return " · ".join(words)
