# exercise: one_forward_one_backward
# says: and the forward of the first turn
# the ranks are turned around: rank r runs r forwards ahead, so that the last rank runs furthest
# ahead, and rank 0 waits for B0 before F1

from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p: int, m: int) -> Schedule:
    orders = []
    for r in range(p):
        ahead = min(r, m)
        order = [Operation("F", i) for i in range(ahead)]
        for i in range(m - ahead):
            order += [Operation("F", ahead + i), Operation("B", i)]
        order += [Operation("B", i) for i in range(m - ahead, m)]
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)
