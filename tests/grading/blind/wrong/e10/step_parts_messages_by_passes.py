# exercise: step_parts
# says: 2, not 4 a layer
# messages are counted like FLOPs, passes times two a layer: backward sends four, so 6 (8 with
# full) instead of 4 (6)

from minitrain.planning.run import Run
from minitrain.planning.step.layer_times import elementwise_seconds


def step_parts(run: Run, fabric) -> dict[str, float]:
    model, plan, chip = run.model, run.plan, run.chip
    m, own_layers = run.microbatches, model.layers / plan.pp
    again = plan.recompute == "full"
    passes = 4 if again else 3
    scores = 4 * model.layers * model.hidden * run.seq * run.tokens
    rest = step_flops(run)[0] / 3 - scores
    work = rest / chip.constants.matmul + scores / chip.constants.attention
    matmul = passes * work / (run.gpus * chip.peak(plan.precision))
    elementwise = passes * m * own_layers * elementwise_seconds(run)
    message = 2 * model.hidden * run.local_tokens
    count = 2 * passes * m * own_layers
    tensor = count * fabric.seconds("all_reduce", message, plan.tp)
    bubble = (plan.pp - 1) / (plan.vpp * m) * (matmul + elementwise + tensor)
    held, ranks = weights(model)[0] / (plan.tp * plan.pp), plan.dp * plan.cp
    if plan.zero == 3:
        gather = fabric.seconds("all_gather", 2 * held, ranks, plan.tp)
        scatter = fabric.seconds("reduce_scatter", 4 * held, ranks, plan.tp)
        data = max(0, m * (2 * gather + scatter) - matmul - elementwise)
    else:
        data = fabric.seconds("all_reduce", 4 * held, ranks, plan.tp)
    return {
        "matmul": matmul,
        "elementwise": elementwise,
        "tensor": tensor,
        "bubble": bubble,
        "data": data,
    }
