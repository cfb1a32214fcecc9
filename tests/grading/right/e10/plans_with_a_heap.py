import heapq

from minitrain.planning.run import Plan, make_run


def legal(model, gpus, batch):
    for tp in (t for t in (8, 4, 2, 1) if model.heads % t == 0):
        for pp in (p for p in (16, 8, 4, 2, 1) if model.layers % p == 0):
            if gpus % (tp * pp) == 0:
                yield from ((tp, pp, gpus // tp // pp, micro) for micro in (4, 2, 1))


def best_plans(model, chip, gpus, seq, batch, memory_of, seconds_of, best=5):
    found = []
    for tp, pp, dp, micro in legal(model, gpus, batch):
        if batch % (dp * micro):
            continue
        for zero in (1,) if pp > 1 else (1, 3):
            for recompute in ("full", "none"):
                plan = Plan(
                    tp=tp,
                    sp=tp != 1,
                    pp=pp,
                    dp=dp,
                    zero=zero,
                    recompute=recompute,
                    micro_batch=micro,
                )
                run = make_run(chip, model, plan, seq, batch)
                if memory_of(run) > 0.92 * chip.memory:
                    continue
                found.append((seconds_of(run), len(found), run))
    return [run for _, _, run in heapq.nsmallest(best, found)]
