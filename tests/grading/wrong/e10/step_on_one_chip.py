# exercise: step_parts
# says: divide by run.gpus

from minitrain.planning.step.layer_times import elementwise_seconds


def step_parts(run, fabric):
    plan, model, chip, held = run.plan, run.model, run.chip, run.chip.constants
    passes = 4 if plan.recompute == "full" else 3
    scores = 4 * model.layers * model.hidden * run.seq * run.tokens
    flops = step_flops(run)[0] / 3 - scores
    forward = flops / held.matmul + scores / held.attention
    matmul = passes * forward / chip.peak(plan.precision)
    layers = run.microbatches * model.layers / plan.pp
    elementwise = passes * layers * elementwise_seconds(run)
    message = 2 * run.local_tokens * model.hidden
    tensor = 2 * (passes - 1) * layers * fabric.seconds("all_reduce", message, plan.tp)
    work = matmul + elementwise + tensor
    bubble = work * (plan.pp - 1) / (plan.vpp * run.microbatches)
    owned, across = weights(model)[0] / (plan.tp * plan.pp), (plan.dp * plan.cp, plan.tp)
    data = fabric.seconds("all_reduce", 4 * owned, *across)
    if plan.zero == 3:
        gather = fabric.seconds("all_gather", 2 * owned, *across)
        scatter = fabric.seconds("reduce_scatter", 4 * owned, *across)
        data = run.microbatches * (2 * gather + scatter)
        data = max(0.0, data - matmul - elementwise)
    return {
        "matmul": matmul,
        "elementwise": elementwise,
        "tensor": tensor,
        "bubble": bubble,
        "data": data,
    }
