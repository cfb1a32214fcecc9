# exercise: best_plans
# differs: a generator of legal plans in nested loops, memory asked as they come, heapq.nsmallest
# by seconds that are taken once
import heapq

from minitrain.planning.run import Plan, Run, make_run


def legal(model, gpus, batch):
    for pp in (16, 8, 4, 2, 1):
        for tp in (8, 4, 2, 1):
            dp, rest = divmod(gpus, tp * pp)
            if rest or model.layers % pp or model.heads % tp:
                continue
            for micro in (4, 2, 1):
                if dp == 0 or batch % (dp * micro):
                    continue
                for zero in (1, 3) if pp == 1 else (1,):
                    for recompute in ("full", "none"):
                        cut = {"tp": tp, "pp": pp, "dp": dp, "sp": tp > 1}
                        yield Plan(
                            **cut, zero=zero, recompute=recompute, micro_batch=micro
                        )


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    usable = 0.92 * chip.memory
    runs = (make_run(chip, model, plan, seq, batch) for plan in legal(model, gpus, batch))
    small = (run for run in runs if memory_of(run) <= usable)
    timed = [(seconds_of(run), number, run) for number, run in enumerate(small)]
    return [run for _, _, run in heapq.nsmallest(best, timed)]
