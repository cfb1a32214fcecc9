# exercise: interleaved
# says: it can be | are enough

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p, m, v):
    groups = [range(g, g + p) for g in range(0, m, p)]
    forwards = [Operation("F", i, c) for group in groups for c in range(v) for i in group]
    backwards = [Operation("B", i, v - 1 - c) for group in groups for c in range(v) for i in group]
    orders = []
    for r in range(p):
        n = min(m * v, m * v)
        order = forwards[:n]
        for pair in zip(forwards[n:], backwards):
            order += pair
        orders.append(order + backwards[m * v - n :])
    return Schedule("interleaved", m, v, orders)
