# exercise: best_plans
# says: sp wherever tp is over 1
# sequence parallelism is never switched on

from minitrain.planning.run import Plan, Run, make_run

from itertools import product


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    found = []
    for tp, pp, zero, recompute, mb in product((1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 3), ("none", "full"), (1, 2, 4)):
        if model.heads % tp or model.layers % pp or gpus % (tp * pp):
            continue
        dp = gpus // (tp * pp)
        if batch % (dp * mb) or (zero == 3 and pp > 1):
            continue
        plan = Plan(tp=tp, pp=pp, dp=dp, zero=zero, recompute=recompute, micro_batch=mb)
        run = make_run(chip, model, plan, seq, batch)
        if memory_of(run) <= 0.92 * chip.memory:
            found.append((seconds_of(run), run))
    found.sort(key=lambda pair: pair[0])
    return [run for _, run in found[:best]]
