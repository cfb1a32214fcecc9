# exercise: gpipe
# says: one order for each rank

from minitrain.parallel.pipeline.operations import Operation, Schedule


def gpipe(p, m):
    order = [Operation(kind, i) for kind in "FB" for i in range(m)]
    return Schedule("gpipe", m, 1, [order])
