# exercise: interleaved
# says: B0.1 never runs

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p, m, v):
    orders = []
    for r in range(p):
        n = min(m, p - r - 1)
        order = [Operation("F", i) for i in range(n)]
        for i in range(m - n):
            order += [Operation("F", n + i), Operation("B", i)]
        orders.append(order + [Operation("B", i) for i in range(m - n, m)])
    return Schedule("interleaved", m, v, orders)
