# exercise: interleaved
# says: where B0.2 is next | is next: p microbatches go through chunk 0
# swaps the first and the last chunk for the backwards instead of reversing them all: right for
# v = 2 and 3, but v = 4 runs chunks 3, 1, 2, 0; the text: backwards "the same, last chunk
# first" (the gradient comes from chunk c+1).

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p: int, m: int, v: int) -> Schedule:
    groups = [range(start, start + p) for start in range(0, m, p)]
    down = list(range(v))
    up = list(down)
    up[0], up[-1] = up[-1], up[0]
    forwards = [Operation("F", i, c) for g in groups for c in down for i in g]
    backwards = [Operation("B", i, c) for g in groups for c in up for i in g]
    orders = []
    for r in range(p):
        ahead = (v - 1) * p + 2 * (p - 1 - r) if v > 1 else p - 1 - r
        ahead = min(ahead, m * v)
        order = forwards[:ahead]
        for forward, backward in zip(forwards[ahead:], backwards):
            order += [forward, backward]
        orders.append(order + backwards[m * v - ahead :])
    return Schedule("interleaved", m, v, orders)
