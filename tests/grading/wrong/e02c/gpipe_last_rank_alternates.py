# exercise: gpipe
# says: forwards come first

from minitrain.parallel.pipeline.operations import Operation, Schedule


def gpipe(p, m):
    order = [Operation(kind, i) for kind in "FB" for i in range(m)]
    last = [Operation(kind, i) for i in range(m) for kind in "FB"]
    return Schedule("gpipe", m, 1, [order] * (p - 1) + [last])
