# exercise: best_plans
# says: needs exactly so much
# a run that needs exactly 92% of the memory is dropped; the docstring says "Fits:
# memory_of(run) is at most 92% of chip.memory".

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
        if gpus % (tp * pp) or (zero == 3 and pp > 1) or batch % (dp * micro):
            continue
        plan = Plan(
            tp=tp, sp=tp > 1, pp=pp, dp=dp, zero=zero,
            recompute=recompute, micro_batch=micro,
        )  # fmt: skip
        run = make_run(chip, model, plan, seq, batch)
        if memory_of(run) < 0.92 * chip.memory:
            fitting.append(run)
    return sorted(fitting, key=seconds_of)[:best]
