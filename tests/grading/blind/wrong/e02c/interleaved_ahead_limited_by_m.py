# exercise: interleaved
# says: yours are never more than m: a rank has m·v forwards
# the forwards ahead are limited by m; the text says "never more than m·v", since a rank has m·v
# forwards. Right where m is large.

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p: int, m: int, v: int) -> Schedule:
    groups = [range(start, start + p) for start in range(0, m, p)]
    forwards = [Operation("F", i, c) for g in groups for c in range(v) for i in g]
    backwards = [
        Operation("B", i, v - 1 - c) for g in groups for c in range(v) for i in g
    ]
    orders = []
    for r in range(p):
        ahead = p - 1 - r if v == 1 else (v - 1) * p + 2 * (p - 1 - r)
        ahead = min(ahead, m)
        order = forwards[:ahead]
        for f, b in zip(forwards[ahead:], backwards):
            order += [f, b]
        orders.append(order + backwards[m * v - ahead :])
    return Schedule("interleaved", m, v, orders)
