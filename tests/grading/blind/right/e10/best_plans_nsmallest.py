# right: a generator of the runs that fit and heapq.nsmallest, which asks each for its seconds once
from heapq import nsmallest

from minitrain.planning.run import Plan, Run, make_run


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    def legal():
        for tp in (1, 2, 4, 8):
            for pp in (1, 2, 4, 8, 16):
                dp, rest = divmod(gpus, tp * pp)
                if rest or model.heads % tp or model.layers % pp:
                    continue
                for micro in (1, 2, 4):
                    if batch % (dp * micro):
                        continue
                    for zero in (1, 3) if pp == 1 else (1,):
                        for recompute in ("none", "full"):
                            yield make_run(
                                chip,
                                model,
                                Plan(
                                    tp=tp,
                                    sp=tp > 1,
                                    pp=pp,
                                    dp=dp,
                                    zero=zero,
                                    recompute=recompute,
                                    micro_batch=micro,
                                ),
                                seq,
                                batch,
                            )

    limit = 0.92 * chip.memory
    return nsmallest(best, (run for run in legal() if memory_of(run) <= limit), key=seconds_of)
