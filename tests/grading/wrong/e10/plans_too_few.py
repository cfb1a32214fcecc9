# exercise: best_plans
# says: were never looked at

from itertools import product

from minitrain.planning.run import Plan, make_run


def best_plans(model, chip, gpus, seq, batch, memory_of, seconds_of, best=5):
    fitting = []
    sizes = (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 3), ("none", "full"), (1,)
    for tp, pp, zero, recompute, micro in product(*sizes):
        if gpus % (tp * pp) or model.heads % tp or model.layers % pp:
            continue
        dp = gpus // (tp * pp)
        if batch % (dp * micro) or (zero == 3 and pp > 1):
            continue
        plan = Plan(
            tp=tp, sp=tp > 1, pp=pp, dp=dp, zero=zero, recompute=recompute, micro_batch=micro
        )
        run = make_run(chip, model, plan, seq, batch)
        if memory_of(run) <= 0.92 * chip.memory:
            fitting.append(run)
    return sorted(fitting, key=seconds_of)[:best]
