# exercise: best_plans
# says: every plan's memory is asked for
# asks that tp divide kv_heads as well, and so drops legal plans of models with few key/value
# heads; the docstring: "tp of 1 2 4 8 dividing heads".

from itertools import product

from minitrain.planning.run import Plan, Run, make_run


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    fitting = []
    for tp, pp, zero, recompute, micro in product(
        (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 3), ("none", "full"), (1, 2, 4)
    ):
        if model.heads % tp or model.kv_heads % tp or model.layers % pp:
            continue
        if gpus % (tp * pp) or (zero == 3 and pp > 1):
            continue
        dp = gpus // (tp * pp)
        if batch % (dp * micro):
            continue
        plan = Plan(tp=tp, sp=tp > 1, pp=pp, dp=dp, zero=zero, recompute=recompute, micro_batch=micro)  # fmt: skip
        run = make_run(chip, model, plan, seq, batch)
        if memory_of(run) <= 0.92 * chip.memory:
            fitting.append(run)
    return sorted(fitting, key=seconds_of)[:best]
