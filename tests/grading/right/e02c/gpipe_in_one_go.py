from itertools import product

from minitrain.parallel.pipeline.operations import Operation, Schedule


def gpipe(p, m):
    """The kinds times the microbatches, anew for every rank."""
    orders = [tuple(Operation(*pair) for pair in product("FB", range(m))) for _ in range(p)]
    return Schedule("gpipe", m, 1, tuple(orders))
