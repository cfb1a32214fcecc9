# exercise: interleaved
# says: yours are 2·(p-1-r)
# v = 1 is not treated apart: 2(p-1-r) forwards ahead there too instead of p-1-r

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p: int, m: int, v: int) -> Schedule:
    forwards = [(i, c) for g in range(0, m, p) for c in range(v) for i in range(g, g + p)]
    backwards = [(i, v - 1 - c) for i, c in forwards]
    orders = []
    for r in range(p):
        ahead = min((v - 1) * p + 2 * (p - 1 - r), m * v)
        order = [Operation("F", i, c) for i, c in forwards[:ahead]]
        for f, b in zip(forwards[ahead:], backwards):
            order += [Operation("F", *f), Operation("B", *b)]
        order += [Operation("B", i, c) for i, c in backwards[m * v - ahead :]]
        orders.append(order)
    return Schedule("interleaved", m, v, orders)
