# exercise: best_plans
# says: needs exactly so much
# a run that needs exactly 92% of the memory is dropped; the docstring says "memory_of(run) is
# at most 92% of chip.memory".

from itertools import product

from minitrain.planning.run import Model, Plan, Run, make_run


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    fitting = []
    for tp, pp, zero, recompute, micro in product(
        (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 3), ("none", "full"), (1, 2, 4)
    ):
        if model.heads % tp or model.layers % pp or gpus % (tp * pp):
            continue
        dp = gpus // (tp * pp)
        if batch % (dp * micro) or (zero == 3 and pp > 1):
            continue
        plan = Plan(tp=tp, sp=tp > 1, pp=pp, dp=dp, zero=zero, recompute=recompute, micro_batch=micro)  # fmt: skip
        run = make_run(chip, model, plan, seq, batch)
        if memory_of(run) < 0.92 * chip.memory:
            fitting.append(run)
    return sorted(fitting, key=seconds_of)[:best]
