# exercise: interleaved
# says: where F0.1 is next
# all m microbatches go through chunk 0 before any goes through chunk 1; the text: "p
# microbatches through chunk 0, the same p through chunk 1, …, then the next p". Right only for
# m == p or v = 1.

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p: int, m: int, v: int) -> Schedule:
    forwards = [Operation("F", i, c) for c in range(v) for i in range(m)]
    backwards = [Operation("B", i, v - 1 - c) for c in range(v) for i in range(m)]
    orders = []
    for r in range(p):
        ahead = p - 1 - r if v == 1 else (v - 1) * p + 2 * (p - 1 - r)
        ahead = min(ahead, m * v)
        order = forwards[:ahead]
        for f, b in zip(forwards[ahead:], backwards):
            order += [f, b]
        orders.append(order + backwards[m * v - ahead :])
    return Schedule("interleaved", m, v, orders)
