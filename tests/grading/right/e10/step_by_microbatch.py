from minitrain.planning.step.layer_times import elementwise_seconds


def step_parts(run, fabric):
    """One microbatch on one rank first, then the step; selective recomputation is counted too."""
    plan, model = run.plan, run.model
    rate = run.chip.peak(plan.precision)
    layers, m = model.layers / plan.pp, run.microbatches
    again = 1 if plan.recompute == "full" else 0
    scores = 4 * model.hidden * model.layers * run.seq
    products = 2 * weights(model)[1]
    token = products * (3 + again) / run.chip.constants.matmul
    token += scores * (3 + again) / run.chip.constants.attention
    matmul = token * run.tokens / run.gpus / rate
    elementwise = m * layers * (3 + again) * elementwise_seconds(run)
    one = fabric.seconds("all_reduce", 2 * run.local_tokens * model.hidden, plan.tp)
    tensor = m * layers * (4 + 2 * again) * one
    bubble = (matmul + elementwise + tensor) * (plan.pp - 1) / plan.vpp / m
    mine, ranks = weights(model)[0] / plan.tp / plan.pp, plan.dp * plan.cp
    if plan.zero == 3:

        def sent(kind, size):
            return fabric.seconds(kind, size * mine, ranks, stride=plan.tp)

        traffic = m * (sent("all_gather", 2) * 2 + sent("reduce_scatter", 4))
        data = max(traffic - (matmul + elementwise), 0)
    else:
        data = fabric.seconds("all_reduce", 4 * mine, ranks, stride=plan.tp)
    return {
        "data": data,
        "bubble": bubble,
        "tensor": tensor,
        "elementwise": elementwise,
        "matmul": matmul,
    }
