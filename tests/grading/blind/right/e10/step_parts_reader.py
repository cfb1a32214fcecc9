# a reader's answer to `step_parts`, in which others made the mistakes of wrong/e10/step_parts_reader.diff

from minitrain.planning.run import Run

from minitrain.planning.step.layer_times import elementwise_seconds


def step_parts(run: Run, fabric) -> dict[str, float]:
    model, plan, chip = run.model, run.plan, run.chip
    full = plan.recompute == "full"
    passes = 4 if full else 3
    C = step_flops(run)[0]
    S = 4 * model.layers * model.hidden * run.seq * run.tokens
    F = C / 3 - S
    share = chip.constants
    matmul = passes * (F / share.matmul + S / share.attention)
    matmul /= run.gpus * chip.peak(plan.precision)
    m = run.microbatches
    layer_runs = m * model.layers / plan.pp
    elementwise = passes * layer_runs * elementwise_seconds(run)
    message = fabric.seconds("all_reduce", 2 * model.hidden * run.local_tokens, plan.tp)
    tensor = (6 if full else 4) * layer_runs * message
    bubble = (plan.pp - 1) / (plan.vpp * m) * (matmul + elementwise + tensor)
    own = weights(model)[0] / (plan.tp * plan.pp)
    ranks = plan.dp * plan.cp
    if plan.zero == 3:
        gather = fabric.seconds("all_gather", 2 * own, ranks, plan.tp)
        scatter = fabric.seconds("reduce_scatter", 4 * own, ranks, plan.tp)
        data = max(0, m * (2 * gather + scatter) - matmul - elementwise)
    else:
        data = fabric.seconds("all_reduce", 4 * own, ranks, plan.tp)
    return {
        "matmul": matmul,
        "elementwise": elementwise,
        "tensor": tensor,
        "bubble": bubble,
        "data": data,
    }
