# exercise: best_plans
# says: is not all of
# where tp · pp does not divide the chips, dp is rounded down and some chips stand idle; "dp the
# rest", "where that divides" (hint 2): right for powers of two only.

from itertools import product

from minitrain.planning.run import Model, Plan, Run, make_run


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    tps = [tp for tp in (1, 2, 4, 8) if model.heads % tp == 0]
    pps = [pp for pp in (1, 2, 4, 8, 16) if model.layers % pp == 0]
    fitting = []
    for tp, pp, zero, recompute, micro in product(
        tps, pps, (1, 3), ("none", "full"), (1, 2, 4)
    ):
        dp = gpus // (tp * pp)
        if dp == 0 or (zero == 3 and pp > 1) or batch % (dp * micro):
            continue
        plan = Plan(
            tp=tp, sp=tp > 1, pp=pp, dp=dp, zero=zero,
            recompute=recompute, micro_batch=micro,
        )  # fmt: skip
        run = make_run(chip, model, plan, seq, batch)
        if memory_of(run) <= 0.92 * chip.memory:
            fitting.append(run)
    return sorted(fitting, key=seconds_of)[:best]
