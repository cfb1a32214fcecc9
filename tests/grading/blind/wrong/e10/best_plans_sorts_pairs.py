# exercise: best_plans
# says: sort them with key=seconds_of (tuples of equal seconds compare their runs)
# pairs (seconds, run) are sorted, so that of equally fast plans Python compares the runs, which
# have no order: TypeError

from itertools import product

from minitrain.planning.run import Plan, Run, make_run


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    found = []
    for tp, pp, zero, recompute, micro in product(
        (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 3), ("none", "full"), (1, 2, 4)
    ):
        if model.heads % tp or model.layers % pp or gpus % (tp * pp):
            continue
        dp = gpus // (tp * pp)
        if batch % (dp * micro) or (zero == 3 and pp > 1):
            continue
        plan = Plan(
            tp=tp,
            sp=tp > 1,
            pp=pp,
            dp=dp,
            zero=zero,
            recompute=recompute,
            micro_batch=micro,
        )
        run = make_run(chip, model, plan, seq, batch)
        if memory_of(run) <= 0.92 * chip.memory:
            found.append((seconds_of(run), run))
    return [run for _, run in sorted(found)[:best]]
