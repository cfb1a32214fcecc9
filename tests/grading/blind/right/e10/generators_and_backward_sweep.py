# right: best_plans is a chain of generators that ends in heapq.nsmallest; pareto walks from the cheapest to the dearest, keeps who is faster, and turns the list round
import heapq

from minitrain.planning.run import Model, Plan, Run, make_run


def legal_plans(model, gpus, batch):
    for pp in (1, 2, 4, 8, 16):
        for tp in (1, 2, 4, 8):
            dp, rest = divmod(gpus, tp * pp)
            if rest or model.layers % pp or model.heads % tp:
                continue
            for micro_batch in (1, 2, 4):
                if batch % (dp * micro_batch):
                    continue
                for zero in (1,) if pp > 1 else (1, 3):
                    shape = dict(tp=tp, pp=pp, dp=dp, zero=zero, sp=tp > 1)
                    for recompute in ("none", "full"):
                        yield Plan(
                            **shape, micro_batch=micro_batch, recompute=recompute
                        )


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    room = 0.92 * chip.memory
    plans = legal_plans(model, gpus, batch)
    runs = (make_run(chip, model, plan, seq, batch) for plan in plans)
    fitting = (run for run in runs if memory_of(run) <= room)
    return heapq.nsmallest(best, fitting, key=seconds_of)


def pareto(choices: list) -> list:
    kept = []
    for choice in sorted(choices, key=lambda each: (each.usd, each.days)):
        if not kept or choice.days < kept[-1].days:  # dearer, so it must be faster
            kept.append(choice)
    return kept[::-1]
