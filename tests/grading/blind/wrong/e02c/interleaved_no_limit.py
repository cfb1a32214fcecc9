# exercise: interleaved
# says: never runs
# the forwards ahead are not limited by m·v, so the last slice starts at a negative index and
# loses backwards; "never more than m·v"

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
        order = forwards[:ahead]
        for pair in zip(forwards[ahead:], backwards):
            order += pair
        orders.append(order + backwards[m * v - ahead :])
    return Schedule("interleaved", m, v, orders)
