# exercise: interleaved
# says: backwards the same with the last chunk first
# the backwards of a group are its forwards turned around, so that the microbatches run backward
# too, from the last of the group to its first

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p: int, m: int, v: int) -> Schedule:
    forwards, backwards = [], []
    for start in range(0, m, p):
        group = [(i, c) for c in range(v) for i in range(start, start + p)]
        forwards += [Operation("F", i, c) for i, c in group]
        backwards += [Operation("B", i, c) for i, c in reversed(group)]
    orders = []
    for r in range(p):
        ahead = p - 1 - r if v == 1 else (v - 1) * p + 2 * (p - 1 - r)
        ahead = min(ahead, m * v)
        order = forwards[:ahead]
        for f, b in zip(forwards[ahead:], backwards):
            order += [f, b]
        order += backwards[m * v - ahead :]
        orders.append(order)
    return Schedule("interleaved", m, v, orders)
