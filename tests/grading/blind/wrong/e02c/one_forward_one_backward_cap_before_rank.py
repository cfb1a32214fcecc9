# exercise: one_forward_one_backward
# says: take r off first, min(p-1-r, m)
# caps p-1 at m first and takes the rank off afterwards, so with m < p-1 the later ranks run too
# few ahead (p=4, m=2: rank 2 runs F0 B0 F1 B1); the text: "p-1-r forwards ahead (never more
# than m)".

from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p: int, m: int) -> Schedule:
    orders = []
    for r in range(p):
        ahead = max(0, min(p - 1, m) - r)
        order = [Operation("F", i) for i in range(ahead)]
        for i in range(m - ahead):
            order += [Operation("F", ahead + i), Operation("B", i)]
        order += [Operation("B", i) for i in range(m - ahead, m)]
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)
