# exercise: one_forward_one_backward
# says: microbatches are 0 to

from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p, m):
    orders = []
    for r in range(p):
        n = p - r - 1
        order = [Operation("F", i) for i in range(n)]
        for i in range(m - n):
            order += [Operation("F", n + i), Operation("B", i)]
        orders.append(order + [Operation("B", i) for i in range(max(0, m - n), m)])
    return Schedule("1f1b", m, 1, orders)
