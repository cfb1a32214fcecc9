# right: plans in one comprehension, those that fit filtered, then timed by sorted's key, once each
from itertools import product

from minitrain.planning.run import Plan, Run, make_run


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    cuts = [
        (tp, pp, gpus // tp // pp)
        for tp in (8, 4, 2, 1)
        for pp in (16, 8, 4, 2, 1)
        if model.heads % tp == 0 and model.layers % pp == 0 and gpus % (tp * pp) == 0
    ]
    choices = product(cuts, [(z, r) for z in (3, 1) for r in ("full", "none")], (4, 2, 1))
    runs = (
        make_run(
            chip,
            model,
            Plan(tp, tp > 1, pp=pp, dp=dp, zero=z, recompute=r, micro_batch=b),
            seq,
            batch,
        )
        for (tp, pp, dp), (z, r), b in choices
        if batch % (dp * b) == 0 and not (z == 3 and pp > 1)
    )
    fitting = [run for run in runs if memory_of(run) / chip.memory <= 0.92]
    return sorted(fitting, key=seconds_of)[:best]
