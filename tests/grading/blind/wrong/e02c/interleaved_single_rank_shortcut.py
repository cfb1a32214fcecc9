# exercise: interleaved
# says: backwards the same with the last chunk first
# on a single rank runs each microbatch through all chunks and all the way back at once; the
# text has (v-1)·p + 2·(p-1-r) = v-1 forwards ahead and "one forward, one backward, in turn" for
# p = 1 too.

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p: int, m: int, v: int) -> Schedule:
    if p == 1:  # nobody to wait for
        order = []
        for i in range(m):
            order += [Operation("F", i, c) for c in range(v)]
            order += [Operation("B", i, v - 1 - c) for c in range(v)]
        return Schedule("interleaved", m, v, [order])
    groups = [range(start, start + p) for start in range(0, m, p)]
    forwards = [Operation("F", i, c) for g in groups for c in range(v) for i in g]
    backwards = [
        Operation("B", i, v - 1 - c) for g in groups for c in range(v) for i in g
    ]
    orders = []
    for r in range(p):
        ahead = (v - 1) * p + 2 * (p - 1 - r) if v > 1 else p - 1 - r
        ahead = min(ahead, m * v)
        order = forwards[:ahead]
        for forward, backward in zip(forwards[ahead:], backwards):
            order += [forward, backward]
        orders.append(order + backwards[m * v - ahead :])
    return Schedule("interleaved", m, v, orders)
