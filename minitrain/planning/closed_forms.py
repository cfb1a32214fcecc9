"""The planner on one page: memory, time and FLOPs of a run, in closed form. Lab e10.

    FLOPs       6 N D and attention's 12 l h s D, N the parameters used in each token's matmuls
    memory      16 N / (t p), less with ZeRO, and l layers of one microbatch's activations
    step        compute + memory-bound kernels + exposed communication + bubble

`step/step.py` computes the step with an event-driven clock. This version is off by 5% on
Korthikanti's table 5 (the clock 2%) and 8% on the MPT runs (4%): it explains most of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from minitrain.measure.flops import attention_flops_per_token
from minitrain.measure.parameters import matmul_parameters, mlp_weights
from minitrain.planning.hardware import Chip
from minitrain.planning.run import Model, Plan, Run, make_run
from minitrain.planning.search import USABLE
from minitrain.planning.step.layer_times import elementwise_seconds
from minitrain.planning.step.memory import rank_memory
from minitrain.planning.step.network import Fabric
from minitrain.planning.step.step import hardware_flops, model_flops


def weights(model: Model) -> tuple[int, int]:
    """(all parameters, those active per token); without biases, the head never tied."""
    active = matmul_parameters(model)
    idle = (model.experts - model.experts_per_token) * mlp_weights(model, model.moe_ffn)
    norms = (2 * model.layers + 1) * model.hidden
    embedding = model.hidden * model.vocab
    return active + model.moe_layers * idle + norms + embedding, active


def step_flops(run: Run) -> tuple[int, int]:
    """(model FLOPs of a step, hardware FLOPs including recomputation)."""
    return model_flops(run), hardware_flops(run)


def activation_bytes(run: Run) -> float:
    """Activation bytes kept for backward on the first pipeline rank, which holds the most."""
    return rank_memory(run, 0).activations


def step_parts(run: Run, fabric: Fabric) -> dict[str, float]:
    """Seconds of a step by part: matmul, elementwise, tensor, bubble, data; they sum to the step.

    `tensor` counts the all-reduces of a layer (two forward, two backward, two if recomputed);
    `data` one all-reduce of FP32 gradients, or ZeRO-3's traffic not hidden by computation.
    """
    plan, model = run.plan, run.model
    passes = 4 if plan.recompute == "full" else 3  # in units of a forward: a backward is two
    layers = run.microbatches * model.layers / plan.pp  # run by a rank in a step
    matmul = passes * forward_seconds(run)
    elementwise = passes * layers * elementwise_seconds(run)
    message = 2 * run.local_tokens * model.hidden
    tensor = 2 * (passes - 1) * layers * fabric.seconds("all_reduce", message, plan.tp)
    bubble = (plan.pp - 1) / (plan.vpp * run.microbatches) * (matmul + elementwise + tensor)
    data = gradient_seconds(run, fabric)
    if plan.zero == 3:
        data = max(0.0, sharded_seconds(run, fabric) - matmul - elementwise)
    names = ("matmul", "elementwise", "tensor", "bubble", "data")
    return dict(zip(names, (matmul, elementwise, tensor, bubble, data)))


def gradient_seconds(run: Run, fabric: Fabric) -> float:
    """One all-reduce of a rank's FP32 gradients, after the last backward."""
    nbytes = 4 * weights(run.model)[0] / (run.plan.tp * run.plan.pp)
    return over_data_ranks("all_reduce", nbytes, run, fabric)


def sharded_seconds(run: Run, fabric: Fabric) -> float:
    """ZeRO-3: each microbatch gathers the weights twice, and scatters its FP32 gradients."""
    nbytes = weights(run.model)[0] / run.plan.tp
    gather = over_data_ranks("all_gather", 2 * nbytes, run, fabric)
    scatter = over_data_ranks("reduce_scatter", 4 * nbytes, run, fabric)
    return run.microbatches * (2 * gather + scatter)


def over_data_ranks(kind: str, nbytes: float, run: Run, fabric: Fabric) -> float:
    """A collective over the data-parallel ranks, which are tp chips apart."""
    return fabric.seconds(kind, nbytes, run.plan.dp * run.plan.cp, stride=run.plan.tp)


def forward_seconds(run: Run) -> float:
    """Seconds of all matmuls of one forward on one chip, at the chip's achieved rates."""
    held, chip = run.chip.constants, run.chip
    scores = run.tokens * attention_flops_per_token(run.model, run.seq)
    flops = step_flops(run)[0] / 3 - scores
    rate = run.gpus * chip.peak(run.plan.precision)
    return (flops / held.matmul + scores / held.attention) / rate


def best_plans(
    model: Model, chip: Chip, gpus: int, seq: int, batch: int,
    memory_of: Callable[[Run], float], seconds_of: Callable[[Run], float], best: int = 5,
) -> list[Run]:  # fmt: skip
    """The fastest runs that fit, fastest first; only those that fit are timed."""
    runs = legal_runs(model, chip, gpus, seq, batch)
    fitting = [run for run in runs if memory_of(run) <= USABLE * chip.memory]
    return sorted(fitting, key=seconds_of)[:best]


def legal_runs(model: Model, chip: Chip, gpus: int, seq: int, batch: int) -> Iterator[Run]:
    """tp in a node and dividing heads, pp dividing layers, dp the rest and dividing the batch."""
    cuts = product((1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 3), ("none", "full"), (1, 2, 4))
    for tp, pp, zero, recompute, micro in cuts:
        dp, rest = divmod(gpus, tp * pp)
        if rest or model.heads % tp or model.layers % pp or not dp or batch % (dp * micro):
            continue
        if zero == 3 and pp > 1:  # would gather the weights for each microbatch
            continue
        plan = Plan(
            tp=tp, sp=tp > 1, pp=pp, dp=dp, zero=zero, recompute=recompute, micro_batch=micro
        )
        yield make_run(chip, model, plan, seq, batch)
