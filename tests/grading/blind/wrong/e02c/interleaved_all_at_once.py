# exercise: interleaved
# says: where F0.1 is next
# all m microbatches go through a chunk before the next chunk, right only where m = p; "p
# microbatches through chunk 0, the same p through chunk 1, …, then the next p"

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p: int, m: int, v: int) -> Schedule:
    forwards = [Operation("F", i, c) for c in range(v) for i in range(m)]
    backwards = [Operation("B", i, c) for c in reversed(range(v)) for i in range(m)]
    orders = []
    for r in range(p):
        ahead = p - 1 - r if v == 1 else (v - 1) * p + 2 * (p - 1 - r)
        ahead = min(ahead, m * v)
        order = forwards[:ahead]
        for pair in zip(forwards[ahead:], backwards):
            order += pair
        orders.append(order + backwards[m * v - ahead :])
    return Schedule("interleaved", m, v, orders)
