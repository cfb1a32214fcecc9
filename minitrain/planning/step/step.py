"""Seconds of one training step: the schedule's operations on a clock, and the tail after them.

All data, tensor and context ranks do the same at the same time, so one pipeline stands for the
cluster: p ranks are simulated, not p·t·c·d. An operation takes the time of its stage's streams;
transfers between stages run on the sender's communication stream
(`pipeline.timeline.clocked`, the clock that also checks the schedules).

    step = busy + bubble + exposed gradient synchronisation + optimizer

`parts` breaks down the time of the busiest rank, and sums to the step. A long pipeline is simulated
only until it settles: each further p microbatches take the same time again (exactly if p divides
them; within 1% if an interleaved schedule has groups of two sizes).

Identical layers take identical time: a stage is `repeated` blocks of tasks on two streams. With
ZeRO-3 each layer's weights are gathered during the previous layer, and its gradients are scattered
during the next layer's backward; other stages synchronise once a step (`gradient_seconds`).

MFU counts the *model's* FLOPs, HFU adds recomputation. The "52% of peak" in the 2021 Megatron
table is an HFU: full recomputation repeats the forward, 96 instead of 72 B s l h².
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache

from minitrain.measure import flops, parameters
from minitrain.parallel.pipeline.operations import Operation
from minitrain.parallel.pipeline.schedules import make_schedule
from minitrain.parallel.pipeline.timeline import Clocked, clocked
from minitrain.planning.run import Run, StageLayers, chunks_of_rank
from minitrain.planning.step.layer_times import elementwise, layer_times, matmul
from minitrain.planning.step.memory import Memory, end_parameters, peak_memory, rank_parameters
from minitrain.planning.step.network import Fabric, fabric_of
from minitrain.planning.step.streams import Passed, Task, backward_tasks, forward_tasks, repeated

LOSS_BYTES = 24  # a logit: written, cast to FP32, softmax and loss, and their backward
# Bytes a parameter: gradient 3x (clear, norm, read), 3 FP32 states in and out, weight out
ADAM_BYTES = 38
SETTLED = 2  # rounds of p microbatches until a pipeline is periodic
planned_schedule = lru_cache(maxsize=256)(make_schedule)  # many rows of a file share a schedule


def model_flops(run: Run) -> int:
    """FLOPs of one step of the whole batch, forward and backward, without recomputation.

    Attention's scores count in full though causal masking hides half (Narayanan et al. 2021, eq. 3;
    PaLM, app. B): for a GPT the papers' 72 B s l h² (1 + s/(6h) + V/(12 l h)).
    """
    return flops.model_flops(run.model, run.global_batch, run.seq)


def hardware_flops(run: Run) -> int:
    """`model_flops` plus recomputation. `selective` repeats attention's scores unless they are
    fused: a fused kernel's backward always recomputes them, which is not counted."""
    fused = run.plan.recompute == "selective" and run.plan.modern
    recompute = "none" if fused else run.plan.recompute
    return flops.hardware_flops(run.model, run.global_batch, run.seq, recompute)


@dataclass(frozen=True)
class Step:
    """An estimate, with the busiest rank's seconds by part."""

    run: Run
    seconds: float
    parts: dict[str, float]
    memory: Memory

    @property
    def tokens_per_second(self) -> float:
        return self.run.tokens / self.seconds

    @property
    def tflops_per_gpu(self) -> float:
        """Model FLOPs, attention in full; recomputation not counted."""
        return model_flops(self.run) / self.seconds / self.run.gpus / 1e12

    @property
    def mfu(self) -> float:
        return self.tflops_per_gpu * 1e12 / self.run.chip.peak(self.run.plan.precision)

    @property
    def hfu(self) -> float:
        return self.mfu * hardware_flops(self.run) / model_flops(self.run)


def estimate(run: Run, fabric: Fabric | None = None, exact: bool = True) -> Step:
    """Memory and time of one step; if not `exact`, the bubble is in closed form, for a search."""
    fabric = fabric or fabric_of(run.chip, run.per_node)
    passes = rank_passes(run, fabric)
    finish = (finish_seconds if exact else finish_in_closed_form)(run, fabric, passes)
    after = [tail(run, fabric, rank, passes[rank]) for rank in range(run.plan.pp)]
    seconds = max(end + sum(rest.values()) for end, rest in zip(finish, after))
    work = [busy_parts(run, fabric, chunks) for chunks in passes]
    rank = max(range(run.plan.pp), key=lambda r: sum(work[r].values()) + sum(after[r].values()))
    parts = work[rank]
    for part, exposed in after[rank].items():
        parts[part] += exposed
    parts["bubble"] = seconds - sum(parts.values())
    parts = {part: spent for part, spent in parts.items() if spent > 1e-9 * seconds}
    return Step(run, seconds, parts, peak_memory(run))


def busy_parts(run: Run, fabric: Fabric, chunks: list[Passes]) -> dict[str, float]:
    """Busy seconds of a rank over all microbatches, by part."""
    parts: dict[str, float] = defaultdict(float)
    for stage in chunks:
        for passed in (stage.forward, stage.backward):
            for part, seconds in passed.parts.items():
                parts[part] += run.microbatches * seconds
        parts["send"] += 2 * run.microbatches * blocking_seconds(run, fabric)
    return parts


def rank_passes(run: Run, fabric: Fabric) -> list[list[Passes]]:
    """The passes of each pipeline rank's chunks; identical stages are computed once."""

    @lru_cache
    def of(stage: StageLayers) -> Passes:
        return stage_passes(run, fabric, stage)

    return [[of(stage) for stage in chunks_of_rank(run, rank)] for rank in range(run.plan.pp)]


def timeline(run: Run, fabric: Fabric | None = None, microbatches: int | None = None) -> Clocked:
    """Every operation of every pipeline rank with its start and end."""
    fabric = fabric or fabric_of(run.chip, run.per_node)
    return clock(run, fabric, rank_passes(run, fabric), microbatches or run.microbatches)


def clock(run: Run, fabric: Fabric, passes: list[list[Passes]], microbatches: int) -> Clocked:
    plan = run.plan
    table = operation_seconds(run, fabric, passes)

    def seconds(rank: int, operation: Operation) -> float:
        return table[rank][operation.chunk][operation.kind]

    schedule = planned_schedule(plan.schedule, plan.pp, microbatches, plan.vpp)
    beside = send_seconds(run, fabric) - blocking_seconds(run, fabric)  # sends that overlap
    return clocked(schedule, seconds, beside)


def operation_seconds(
    run: Run, fabric: Fabric, passes: list[list[Passes]]
) -> list[list[dict[str, float]]]:
    """Seconds by [rank][chunk][kind], blocking sends included."""
    split = run.plan.schedule == "zero-bubble"
    send = blocking_seconds(run, fabric)
    return [
        [{"F": x.forward.seconds + send, "W": x.weights,
          "B": x.backward.seconds - split * x.weights + send} for x in chunks]
        for chunks in passes
    ]  # fmt: skip


def send_seconds(run: Run, fabric: Fabric) -> float:
    """Sends a microbatch's activations to the next stage, split over tensor ranks."""
    if run.plan.pp == 1:
        return 0.0
    nbytes = 2 * run.local_tokens * run.model.hidden / run.plan.tp
    return fabric.send(nbytes, stride=run.gpus // run.plan.pp)


def blocking_seconds(run: Run, fabric: Fabric) -> float:
    """The blocking part of a send: Megatron of 2021-22 waits for all of it."""
    return 0.0 if run.plan.modern else send_seconds(run, fabric)


def finish_seconds(run: Run, fabric: Fabric, passes: list[list[Passes]]) -> list[float]:
    """Time at which each pipeline rank finishes its last operation."""
    p, m = run.plan.pp, run.microbatches
    if p == 1:
        return [m * sum(x.forward.seconds + x.backward.seconds for x in passes[0])]
    if m <= (SETTLED + 2) * p:
        return clocked_finish(run, fabric, passes, m)
    settled = SETTLED * p + m % p
    short, longer = (clocked_finish(run, fabric, passes, n) for n in (settled, settled + p))
    more = (m - settled - p) / p
    return [b + more * (b - a) for a, b in zip(short, longer)]


def clocked_finish(
    run: Run, fabric: Fabric, passes: list[list[Passes]], microbatches: int
) -> list[float]:
    return [events[-1].end for events in clock(run, fabric, passes, microbatches).ranks]


def finish_in_closed_form(run: Run, fabric: Fabric, passes: list[list[Passes]]) -> list[float]:
    """The slowest rank's work, and (p-1)/v passes of the pipeline to fill and drain it."""
    send = 2 * send_seconds(run, fabric)
    work = [sum(x.forward.seconds + x.backward.seconds for x in chunks) for chunks in passes]
    fill = (run.plan.pp - 1) * (sum(work) / len(work) / run.plan.vpp + send)
    blocked = 2 * run.plan.vpp * blocking_seconds(run, fabric)
    return [run.microbatches * (max(work) + blocked) + fill] * len(passes)


def tail(run: Run, fabric: Fabric, rank: int, passes: list[Passes]) -> dict[str, float]:
    """After the last backward: gradient communication that did not overlap, and the optimizer.

    Gradients are sent in buckets as the last microbatch's backward produces them; the last layer's
    cannot overlap. A chunk finishes p passes before the next, which later software overlaps.
    """
    layers, experts = rank_parameters(run, rank)
    stages = list(chunks_of_rank(run, rank))
    layers += end_parameters(run, stages)
    count = max(1, sum(stage.layers for stage in stages))
    sync = gradient_seconds(run, fabric, layers, experts)
    beside = sum(x.backward.seconds for x in passes)
    if run.plan.modern:
        beside *= 1 + run.plan.pp * (run.plan.vpp - 1) / run.plan.vpp
    exposed = max(sync / count, sync - beside * (count - 1) / count)
    if run.plan.zero == 3:  # the first layer's weights and the last layer's gradients
        exposed = 2 * data_seconds(run, fabric, "all_gather", 2 * (layers + experts) / count)
    held = (layers + experts) / (run.plan.dp * run.plan.cp if run.plan.zero else 1)
    return {"dp": exposed, "optimizer": elementwise(run.chip, ADAM_BYTES * held)}


# ---- a stage: its layers, its embedding, its head, for one microbatch ----


@dataclass(frozen=True)
class Passes:
    """A stage's forward and backward; `weights`: seconds of backward spent on weight gradients."""

    forward: Passed
    backward: Passed
    weights: float


def stage_passes(run: Run, fabric: Fabric, stage: StageLayers) -> Passes:
    forward, backward, weights = Passed(), Passed(), 0.0
    for mixture, layers in ((False, stage.dense), (True, stage.mixture)):
        if layers:
            stack = layer_stack(without_pipeline(run), fabric, mixture, layers)
            forward.add(stack.forward)
            backward.add(stack.backward)
            weights += stack.weights
    for part, seconds in ends(run, stage).items():
        forward.parts[part] += seconds
        backward.parts[part] += 2 * seconds
    return Passes(forward, backward, weights)


@lru_cache(maxsize=4096)
def layer_stack(run: Run, fabric: Fabric, mixture: bool, layers: int) -> Passes:
    """`layers` layers of one kind, one after the other."""
    times = layer_times(run, fabric, mixture)
    gathered, scattered = sharded_seconds(run, fabric, mixture)
    forward = with_gather(forward_tasks(run, times), gathered, 0.0)
    backward = with_gather(backward_tasks(run, times), gathered, scattered)
    weights = layers * (times.qkv + times.out + times.up + times.down)
    return Passes(repeated(forward, layers), repeated(backward, layers), weights)


def without_pipeline(run: Run) -> Run:
    """The run without its pipeline: plans that differ only there share a `layer_stack`."""
    if run.plan.zero == 3:
        return run
    plan = replace(run.plan, pp=1, vpp=1, schedule="1f1b", dp=run.plan.ep, zero=0)
    return replace(run, name="", plan=plan, global_batch=plan.dp * plan.micro_batch)


def ends(run: Run, stage: StageLayers) -> dict[str, float]:
    """Forward seconds of embedding, head and loss, if this stage has them."""
    chip, model, tokens = run.chip, run.model, run.local_tokens
    seconds = {"elementwise": 0.0, "matmul": 0.0}
    if stage.first:
        seconds["elementwise"] += elementwise(chip, 8 * tokens * model.hidden)
    if stage.last:
        columns = model.vocab / run.plan.tp
        kind = "bf16" if run.plan.precision == "fp8" else run.plan.precision
        seconds["matmul"] += matmul(chip, kind, tokens, columns, model.hidden)
        seconds["elementwise"] += elementwise(chip, LOSS_BYTES / 3 * tokens * columns, 4)
    return seconds


def sharded_seconds(run: Run, fabric: Fabric, mixture: bool) -> tuple[float, float]:
    """ZeRO-3: all-gather of a layer's 16-bit weights, reduce-scatter of FP32 gradients."""
    if run.plan.zero < 3:
        return 0.0, 0.0
    own = parameters.layer_weights(run.model, mixture) / run.plan.tp
    gather = data_seconds(run, fabric, "all_gather", 2 * own)
    scatter = data_seconds(run, fabric, "reduce_scatter", 4 * own)
    if mixture:
        experts = parameters.expert_weights(run.model) / run.plan.tp / run.plan.ep
        gather += data_seconds(run, fabric, "all_gather", 2 * experts, run.plan.ep)
        scatter += data_seconds(run, fabric, "reduce_scatter", 4 * experts, run.plan.ep)
    return gather, scatter


def data_seconds(run: Run, fabric: Fabric, kind: str, nbytes: float, apart: int = 1) -> float:
    """A collective over the data-parallel ranks, or over every `apart`-th of them."""
    ranks = run.plan.dp * run.plan.cp // apart
    return fabric.seconds(kind, nbytes, ranks, stride=run.plan.tp * apart)


def with_gather(tasks: list[Task], gathered: float, scattered: float) -> list[Task]:
    """Adds the gather of the next layer's weights, and the scatter of this one's gradients."""
    if not gathered:
        return tasks
    moved = [Task(t.part, t.seconds, tuple(i + 2 for i in t.after)) for t in tasks]
    layer_before = -1  # task 0 of the layer before
    out = [Task("dp", gathered), Task("elementwise", 0.0, (layer_before,)), *moved]
    if scattered:
        last = max(i for i, task in enumerate(out) if not task.communicates)
        out.append(Task("dp", scattered, (last,)))
    return out


def gradient_seconds(run: Run, fabric: Fabric, layers: float, experts: float) -> float:
    """All-reduce of FP32 gradients over data ranks, once a step, or ZeRO-1 and 2's gather."""
    if run.plan.zero == 3:
        return 0.0
    total = 0.0
    for count, apart in ((layers, 1), (experts, run.plan.ep)):
        if run.plan.zero == 0:
            total += data_seconds(run, fabric, "all_reduce", 4 * count, apart)
        else:
            total += data_seconds(run, fabric, "reduce_scatter", 4 * count, apart)
            total += data_seconds(run, fabric, "all_gather", 2 * count, apart)
    return total
