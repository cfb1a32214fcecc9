# exercise: interleaved
# says: which needs its own F3.1, and that comes later in its list
# the backwards are the whole list of forwards reversed, so that the microbatches run backwards
# as well, not the chunks alone

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p: int, m: int, v: int) -> Schedule:
    forwards = [(i, c) for g in range(0, m, p) for c in range(v) for i in range(g, g + p)]
    backwards = forwards[::-1]
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
