# exercise: gpipe
# says: is no Operation: make each by Operation(kind, i)

from minitrain.parallel.pipeline.operations import Schedule


def gpipe(p, m):
    order = [("F", i) for i in range(m)] + [("B", i) for i in range(m)]
    return Schedule("gpipe", m, 1, [order] * p)
