"""One stage's forward and backward of one microbatch: its layers, its embedding, its head.

Layers that are alike take alike: a stage is `repeated` blocks of tasks on two streams. With ZeRO-3
each layer's weights are gathered while the layer before computes, and its gradients are scattered
beside the next layer's backward; other stages synchronise once a step (`gradient_seconds`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from minitrain.measure import parameters
from minitrain.planning.run import Run
from minitrain.planning.step import kernels
from minitrain.planning.step.layer import backward_tasks, forward_tasks
from minitrain.planning.step.layer_times import LayerTimes, layer_times
from minitrain.planning.step.network import Fabric
from minitrain.planning.step.stages import StageLayers
from minitrain.planning.step.streams import Passed, Task, repeated

LOSS_BYTES = 24  # a logit: written, cast to FP32, softmax and loss, and their backward


@dataclass(frozen=True)
class Passes:
    """A stage's forward and backward; `weights` seconds of the latter are weight gradients."""

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
    weights = layers * matmul_seconds(times)
    return Passes(repeated(forward, layers), repeated(backward, layers), weights)


def without_pipeline(run: Run) -> Run:
    """The run as one layer sees it: plans that differ elsewhere alone share a `layer_stack`."""
    if run.plan.zero == 3:
        return run
    plan = replace(run.plan, pp=1, vpp=1, schedule="1f1b", dp=run.plan.ep, zero=0)
    return replace(run, name="", plan=plan, global_batch=plan.dp * plan.micro_batch)


def matmul_seconds(x: LayerTimes) -> float:
    return x.qkv + x.out + x.up + x.down


def ends(run: Run, stage: StageLayers) -> dict[str, float]:
    """Forward seconds of embedding, head and loss, where this stage has them."""
    chip, model, tokens = run.chip, run.model, run.local_tokens
    seconds = {"elementwise": 0.0, "matmul": 0.0}
    if stage.first:
        seconds["elementwise"] += kernels.elementwise(chip, 8 * tokens * model.hidden)
    if stage.last:
        columns = model.vocab / run.plan.tp
        kind = "bf16" if run.plan.precision == "fp8" else run.plan.precision
        seconds["matmul"] += kernels.matmul(chip, kind, tokens, columns, model.hidden)
        seconds["elementwise"] += kernels.elementwise(chip, LOSS_BYTES / 3 * tokens * columns, 4)
    return seconds


def sharded_seconds(run: Run, fabric: Fabric, mixture: bool) -> tuple[float, float]:
    """ZeRO-3's all-gather of one layer's weights in 16 bits, reduce-scatter of FP32 gradients."""
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
    """The next layer's weights are gathered beside this one; its own gradients leave at its end."""
    if not gathered:
        return tasks
    moved = [Task(t.part, t.seconds, tuple(i + 2 for i in t.after)) for t in tasks]
    layer_before = -1  # its task 0
    out = [Task("dp", gathered), Task("elementwise", 0.0, (layer_before,)), *moved]
    if scattered:
        last = max(i for i, task in enumerate(out) if not task.communicates)
        out.append(Task("dp", scattered, (last,)))
    return out


def gradient_seconds(run: Run, fabric: Fabric, parameters: float, experts: float) -> float:
    """FP32 gradients made equal over the data ranks, once a step; ZeRO-1's and 2's gather."""
    if run.plan.zero == 3:
        return 0.0
    total = 0.0
    for count, apart in ((parameters, 1), (experts, run.plan.ep)):
        if run.plan.zero == 0:
            total += data_seconds(run, fabric, "all_reduce", 4 * count, apart)
        else:
            total += data_seconds(run, fabric, "reduce_scatter", 4 * count, apart)
            total += data_seconds(run, fabric, "all_gather", 2 * count, apart)
    return total
