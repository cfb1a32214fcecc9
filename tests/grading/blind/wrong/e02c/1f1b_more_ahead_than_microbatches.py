# exercise: one_forward_one_backward
# says: is no operation of it
# p-1-r forwards ahead even where m is smaller: "p-1-r forwards ahead (never more than m)"; with
# p = 4, m = 2 rank 0 runs a microbatch 2 that does not exist.

from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p: int, m: int) -> Schedule:
    orders = []
    for r in range(p):
        ahead = p - 1 - r
        order = [Operation("F", i) for i in range(ahead)]
        for i in range(m - ahead):
            order += [Operation("F", ahead + i), Operation("B", i)]
        order += [Operation("B", i) for i in range(max(m - ahead, 0), m)]
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)
