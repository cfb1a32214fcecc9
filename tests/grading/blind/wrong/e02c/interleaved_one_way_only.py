# exercise: interleaved
# says: the way there alone
# one formula for all v without the factor 2, (v-1)·p + (p-1-r), right only for v = 1 and for
# the last rank; "(v-1)·p + 2·(p-1-r) forwards ahead"

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p: int, m: int, v: int) -> Schedule:
    groups = [range(start, start + p) for start in range(0, m, p)]
    forwards = [Operation("F", i, c) for g in groups for c in range(v) for i in g]
    backwards = [
        Operation("B", i, v - 1 - c) for g in groups for c in range(v) for i in g
    ]
    orders = []
    for r in range(p):
        ahead = min((v - 1) * p + (p - 1 - r), m * v)
        order = forwards[:ahead]
        for pair in zip(forwards[ahead:], backwards):
            order += pair
        orders.append(order + backwards[m * v - ahead :])
    return Schedule("interleaved", m, v, orders)
