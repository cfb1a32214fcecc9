# exercise: interleaved
# says: where F0.1 is next
# all m microbatches go through chunk 0 before chunk 1, instead of p at a time

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p: int, m: int, v: int) -> Schedule:
    forwards = [(i, c) for c in range(v) for i in range(m)]
    backwards = [(i, c) for c in reversed(range(v)) for i in range(m)]
    orders = []
    for r in range(p):
        ahead = p - 1 - r if v == 1 else (v - 1) * p + 2 * (p - 1 - r)
        ahead = min(ahead, m * v)
        order = [Operation("F", i, c) for i, c in forwards[:ahead]]
        for f, b in zip(forwards[ahead:], backwards):
            order += [Operation("F", *f), Operation("B", *b)]
        order += [Operation("B", i, c) for i, c in backwards[m * v - ahead :]]
        orders.append(order)
    return Schedule("interleaved", m, v, orders)
