# exercise: best_plans
# differs: a generator of legal plans by nested loops, from the largest cuts down, dp by divmod,
# and heapq.nsmallest in place of a sort. pareto by grouping the days and a running minimum.
import heapq
from itertools import accumulate, groupby
from operator import attrgetter

from minitrain.planning.run import Plan, Run, make_run


def legal_plans(model, gpus, batch):
    for pp in filter(lambda n: model.layers % n == 0, (16, 8, 4, 2, 1)):
        for tp in filter(lambda n: model.heads % n == 0, (8, 4, 2, 1)):
            dp, rest = divmod(gpus, tp * pp)
            if rest:
                continue
            for micro in (4, 2, 1):
                if batch % (dp * micro) != 0:
                    continue
                for zero in (1, 3) if pp == 1 else (1,):
                    cut = {"tp": tp, "pp": pp, "dp": dp, "sp": tp != 1}
                    for how in ("full", "none"):
                        yield Plan(**cut, zero=zero, recompute=how, micro_batch=micro)


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    usable = 0.92 * chip.memory
    runs = (
        make_run(chip, model, plan, seq, batch)
        for plan in legal_plans(model, gpus, batch)
    )
    fitting = (run for run in runs if not memory_of(run) > usable)
    timed = [(seconds_of(run), place, run) for place, run in enumerate(fitting)]
    return [run for _, _, run in heapq.nsmallest(best, timed)]


def pareto(choices: list) -> list:
    days = attrgetter("days")
    cheapest = [
        min(group, key=attrgetter("usd"))
        for _, group in groupby(sorted(choices, key=days), key=days)
    ]
    lows = accumulate((c.usd for c in cheapest), min, initial=float("inf"))
    return [choice for choice, low in zip(cheapest, lows) if choice.usd < low]
