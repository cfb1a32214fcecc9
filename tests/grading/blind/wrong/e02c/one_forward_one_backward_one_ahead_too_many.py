# exercise: one_forward_one_backward
# says: the forward of the first turn is not one of them
# p-r forwards ahead (as the picture seems to show) instead of p-1-r, so that p-r+1 activations
# are alive

from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p: int, m: int) -> Schedule:
    orders = []
    for r in range(p):
        ahead = min(p - r, m)
        order = [Operation("F", i) for i in range(ahead)]
        for i in range(m - ahead):
            order.append(Operation("F", ahead + i))
            order.append(Operation("B", i))
        order += [Operation("B", i) for i in range(m - ahead, m)]
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)
