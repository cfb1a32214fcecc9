from itertools import product

from minitrain.planning.run import Plan, make_run


def best_plans(model, chip, gpus, seq, batch, memory_of, seconds_of, best=5):
    cuts = product([8, 4, 2, 1], [16, 8, 4, 2, 1], [4, 2, 1], ["full", "none"], [3, 1])
    cuts = [c for c in cuts if model.heads % c[0] == 0 == model.layers % c[1]]
    cuts = [c for c in cuts if gpus % (c[0] * c[1]) == 0 and not (c[4] == 3 and c[1] > 1)]
    runs = []
    for tp, pp, micro, recompute, zero in cuts:
        dp = gpus // tp // pp
        if batch % (dp * micro) == 0:
            sizes = {"tp": tp, "pp": pp, "dp": dp, "micro_batch": micro}
            plan = Plan(**sizes, sp=tp > 1, zero=zero, recompute=recompute)
            runs.append(make_run(chip, model, plan, seq, batch))
    runs = [run for run in runs if memory_of(run) / chip.memory <= 0.92]
    timed = {i: seconds_of(run) for i, run in enumerate(runs)}
    return [runs[i] for i in sorted(timed, key=timed.get)][:best]
