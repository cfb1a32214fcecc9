# exercise: step_parts
# differs: forward's matmul FLOPs come from the weights and not from step_flops, collectives by a
# small helper with stride as keyword, parts filled into a dict as they come
from minitrain.planning.run import Run
from minitrain.planning.step.layer_times import elementwise_seconds


def step_parts(run: Run, fabric) -> dict[str, float]:
    plan = run.plan
    held, active = weights(run.model)
    forwards = 2 if plan.recompute == "full" else 1
    stages = run.model.layers / plan.pp
    parts = {}

    rate = run.gpus * run.chip.peak(plan.precision)
    linear = 2 * active * run.tokens / (run.chip.constants.matmul * rate)
    per_token = 4 * run.model.layers * run.model.hidden * run.seq
    score = per_token * run.tokens / (run.chip.constants.attention * rate)
    parts["matmul"] = (forwards + 2) * (linear + score)

    one = elementwise_seconds(run) * stages
    parts["elementwise"] = (forwards + 2) * one * run.microbatches

    def across(name, nbytes):
        return fabric.seconds(name, nbytes, plan.dp * plan.cp, stride=plan.tp)

    numbers = run.local_tokens * run.model.hidden
    if plan.sp:
        wait = fabric.seconds("reduce_scatter", 2 * numbers, plan.tp)
        wait += fabric.seconds("all_gather", 2 * numbers, plan.tp)
    else:
        wait = fabric.seconds("all_reduce", 2 * numbers, plan.tp)
    parts["tensor"] = (forwards + 1) * 2 * wait * stages * run.microbatches

    share = (plan.pp - 1) / plan.vpp / run.microbatches
    parts["bubble"] = share * sum(parts.values())

    own = held / plan.tp / plan.pp
    if plan.zero < 3:
        parts["data"] = across("all_reduce", 4 * own)
        return parts
    traffic = 2 * across("all_gather", 2 * own) + across("reduce_scatter", 4 * own)
    hidden = parts["matmul"] + parts["elementwise"]
    parts["data"] = max(0.0, run.microbatches * traffic - hidden)
    return parts
