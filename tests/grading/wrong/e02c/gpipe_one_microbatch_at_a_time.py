# exercise: gpipe
# says: of a rank's work, it can be
# says: forwards come first

from minitrain.parallel.pipeline.operations import Operation, Schedule


def gpipe(p, m):
    order = [Operation(kind, i) for i in range(m) for kind in "FB"]
    return Schedule("gpipe", m, 1, [order] * p)
