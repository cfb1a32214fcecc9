# exercise: gpipe
# says: the same list on every rank
# backwards run from the last microbatch to the first; "all forwards, then all backwards, each
# from microbatch 0 on"

from minitrain.parallel.pipeline.operations import Operation, Schedule


def gpipe(p: int, m: int) -> Schedule:
    order = [Operation("F", i) for i in range(m)]
    order += [Operation("B", i) for i in reversed(range(m))]
    return Schedule("gpipe", m, 1, [order] * p)
