# exercise: gpipe
# says: B0 never runs

from minitrain.parallel.pipeline.operations import Operation, Schedule


def gpipe(p, m):
    return Schedule("gpipe", m, 1, [[Operation("F", i) for i in range(m)]] * p)
