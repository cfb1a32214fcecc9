# exercise: one_forward_one_backward
# says: forwards ahead: there are no more
# the forwards ahead are not capped at m, so that with fewer microbatches than ranks it lists
# microbatches that are not there

from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p: int, m: int) -> Schedule:
    orders = []
    for r in range(p):
        ahead = p - 1 - r
        order = [Operation("F", i) for i in range(ahead)]
        for i in range(m - ahead):
            order += [Operation("F", ahead + i), Operation("B", i)]
        order += [Operation("B", i) for i in range(m - ahead, m)]
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)
