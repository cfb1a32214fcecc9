# exercise: best_plans
# says: filter by memory_of first
# every legal run is timed, and those that do not fit are dropped afterwards; the docstring says
# "what fits, only that, timed once".

from itertools import product

from minitrain.planning.run import Model, Plan, Run, make_run


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    legal = []
    for tp, pp, zero, recompute, micro in product(
        (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 3), ("none", "full"), (1, 2, 4)
    ):
        if model.heads % tp or model.layers % pp or gpus % (tp * pp):
            continue
        dp = gpus // (tp * pp)
        if batch % (dp * micro) or (zero == 3 and pp > 1):
            continue
        plan = Plan(tp=tp, sp=tp > 1, pp=pp, dp=dp, zero=zero, recompute=recompute, micro_batch=micro)  # fmt: skip
        legal.append(make_run(chip, model, plan, seq, batch))
    legal.sort(key=seconds_of)
    return [run for run in legal if memory_of(run) <= 0.92 * chip.memory][:best]
