# exercise: interleaved
# says: deadlock | it can be

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p, m, v):
    forwards = [Operation("F", i, c) for i in range(m) for c in range(v)]
    backwards = [Operation("B", i, v - 1 - c) for i in range(m) for c in range(v)]
    orders = []
    for r in range(p):
        n = min(m * v, (v - 1) * p + 2 * (p - 1 - r) if v > 1 else p - 1 - r)
        order = forwards[:n]
        for pair in zip(forwards[n:], backwards):
            order += pair
        orders.append(order + backwards[m * v - n :])
    return Schedule("interleaved", m, v, orders)
