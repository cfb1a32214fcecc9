# exercise: one_forward_one_backward
# says: where B0 is next
# the backwards that are left run last in, first out, right only while at most one is left (p =
# 2); "then the backwards that are left; each kind from microbatch 0 on"

from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p: int, m: int) -> Schedule:
    orders = []
    for r in range(p):
        ahead = min(p - 1 - r, m)
        order, waiting, backward = [], list(range(ahead)), 0
        order += [Operation("F", i) for i in waiting]
        for i in range(ahead, m):
            order += [Operation("F", i), Operation("B", backward)]
            waiting.append(i)
            waiting.pop(0)
            backward += 1
        while waiting:
            order.append(Operation("B", waiting.pop()))
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)
