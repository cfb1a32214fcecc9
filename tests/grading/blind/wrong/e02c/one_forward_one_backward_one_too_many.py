# exercise: one_forward_one_backward
# says: yours are p-r: the forward of the first turn is not one of them
# rank r runs p-r forwards ahead, one too many, so it holds p-r+1; "p-1-r forwards ahead", "rank
# r never holds more than p-r activations"

from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p: int, m: int) -> Schedule:
    orders = []
    for r in range(p):
        ahead = min(p - r, m)
        order = [Operation("F", i) for i in range(ahead)]
        for i in range(m - ahead):
            order += [Operation("F", ahead + i), Operation("B", i)]
        order += [Operation("B", i) for i in range(m - ahead, m)]
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)
