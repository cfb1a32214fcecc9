# exercise: gpipe
# says: microbatches are 0 to

from minitrain.parallel.pipeline.operations import Operation, Schedule


def gpipe(p, m):
    order = [Operation(kind, i) for kind in "FB" for i in range(1, m + 1)]
    return Schedule("gpipe", m, 1, [order] * p)
