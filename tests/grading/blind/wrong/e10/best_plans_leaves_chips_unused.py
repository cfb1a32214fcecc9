# exercise: best_plans
# says: is not all of
# dp is gpus // (tp pp) without asking whether that divides, so with 12 or 96 chips plans of
# fewer chips come out; the docstring says "dp the rest": tp, pp and dp are all of gpus.

from itertools import product

from minitrain.planning.run import Model, Plan, Run, make_run


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    fitting = []
    for tp, pp, zero, recompute, micro in product(
        (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 3), ("none", "full"), (1, 2, 4)
    ):
        dp = gpus // (tp * pp)
        if model.heads % tp or model.layers % pp or dp < 1:
            continue
        if batch % (dp * micro) or (zero == 3 and pp > 1):
            continue
        plan = Plan(tp=tp, sp=tp > 1, pp=pp, dp=dp, zero=zero, recompute=recompute, micro_batch=micro)  # fmt: skip
        run = make_run(chip, model, plan, seq, batch)
        if memory_of(run) <= 0.92 * chip.memory:
            fitting.append(run)
    return sorted(fitting, key=seconds_of)[:best]
