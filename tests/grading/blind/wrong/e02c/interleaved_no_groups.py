# exercise: interleaved
# says: backwards the same with the last chunk first
# no groups of p: ALL m microbatches go through chunk 0 before any goes through chunk 1 (right
# only where m = p)

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p: int, m: int, v: int) -> Schedule:
    forwards = [Operation("F", i, c) for c in range(v) for i in range(m)]
    backwards = [Operation("B", i, c) for c in reversed(range(v)) for i in range(m)]
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
