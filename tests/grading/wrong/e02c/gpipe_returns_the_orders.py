# exercise: gpipe
# says: return Schedule(name, m, v, orders)

from minitrain.parallel.pipeline.operations import Operation, Schedule


def gpipe(p, m):
    return [[Operation(kind, i) for kind in "FB" for i in range(m)] for _ in range(p)]
