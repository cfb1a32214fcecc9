# exercise: one_forward_one_backward
# says: never runs

from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p, m):
    orders = []
    for r in range(p):
        n = min(m, p - r - 1)
        order = [Operation("F", i) for i in range(n)]
        for i in range(m - n):
            order += [Operation("F", n + i), Operation("B", i)]
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)
