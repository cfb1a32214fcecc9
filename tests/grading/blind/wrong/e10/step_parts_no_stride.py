# exercise: step_parts
# says: data ranks stand tp apart
# the data ranks are asked for without their stride, so the fabric takes them as neighbours in
# one node

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
    count = (6 if again else 4) * m * own_layers
    tensor = count * fabric.seconds("all_reduce", message, plan.tp)
    bubble = (plan.pp - 1) / (plan.vpp * m) * (matmul + elementwise + tensor)
    held, ranks = weights(model)[0] / (plan.tp * plan.pp), plan.dp * plan.cp
    if plan.zero == 3:
        gather = fabric.seconds("all_gather", 2 * held, ranks)
        scatter = fabric.seconds("reduce_scatter", 4 * held, ranks)
        data = max(0, m * (2 * gather + scatter) - matmul - elementwise)
    else:
        data = fabric.seconds("all_reduce", 4 * held, ranks)
    return {
        "matmul": matmul,
        "elementwise": elementwise,
        "tensor": tensor,
        "bubble": bubble,
        "data": data,
    }
