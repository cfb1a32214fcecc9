# exercise: step_parts
# says: each microbatch gathers again
# ZeRO-3's gathers and its reduce-scatter are counted once a step instead of "each microbatch":
# right for one microbatch only.

from minitrain.planning.run import Model, Plan, Run, make_run
from minitrain.planning.step.layer_times import elementwise_seconds

def _weights(model: Model) -> tuple[int, int]:
    """Exercise 1, as the text has it."""
    h, moe = model.hidden, model.moe_layers
    attention = 2 * h * model.head_size * (model.heads + model.kv_heads)
    mlp = (3 if model.gated else 2) * h * model.ffn
    expert = 3 * h * model.moe_ffn
    both = model.layers * attention + (model.layers - moe) * mlp
    both += moe * h * model.experts + h * model.vocab
    held = both + moe * (model.experts + model.shared_experts) * expert
    held += (2 * model.layers + 1) * h + h * model.vocab
    return held, both + moe * (model.experts_per_token + model.shared_experts) * expert


def _model_flops(run: Run) -> float:
    """step_flops(run)[0] of exercise 2, as the text has it."""
    m = run.model
    forward = 2 * _weights(m)[1] + 4 * m.layers * m.hidden * run.seq
    return 3.0 * forward * run.tokens


def step_parts(run: Run, fabric) -> dict[str, float]:
    model, plan, chip = run.model, run.plan, run.chip
    held, m = chip.constants, run.microbatches
    passes = 4 if plan.recompute == "full" else 3
    layers = m * model.layers / plan.pp
    scores = 4 * model.layers * model.hidden * run.seq * run.tokens
    flops = _model_flops(run) / 3 - scores
    rate = run.gpus * chip.peak(plan.precision)
    matmul = passes * (flops / held.matmul + scores / held.attention) / rate
    elementwise = passes * layers * elementwise_seconds(run)
    nbytes = 2 * run.local_tokens * model.hidden
    reduce = fabric.seconds("all_reduce", nbytes, plan.tp, 1)
    tensor = 2 * (passes - 1) * layers * reduce
    busy = matmul + elementwise
    bubble = (plan.pp - 1) / (plan.vpp * m) * (busy + tensor)
    n = _weights(model)[0] / (plan.tp * plan.pp)
    if plan.zero == 3:
        gather = fabric.seconds("all_gather", 2 * n, plan.dp, plan.tp)
        scatter = fabric.seconds("reduce_scatter", 4 * n, plan.dp, plan.tp)
        data = max(0.0, 2 * gather + scatter - busy)
    else:
        data = fabric.seconds("all_reduce", 4 * n, plan.dp, plan.tp)
    return {
        "matmul": matmul,
        "elementwise": elementwise,
        "tensor": tensor,
        "bubble": bubble,
        "data": data,
    }
