# exercise: one_forward_one_backward
# says: p-1-r forwards ahead

from minitrain.parallel.pipeline.operations import Operation, Schedule


def orders(p, m, ahead):
    made = []
    for r in range(p):
        n = max(0, min(m, ahead(r)))
        order = [Operation("F", i) for i in range(n)]
        for i in range(m - n):
            order += [Operation("F", n + i), Operation("B", i)]
        made.append(order + [Operation("B", i) for i in range(m - n, m)])
    return made


def one_forward_one_backward(p, m):
    return Schedule("1f1b", m, 1, orders(p, m, lambda r: m))
