# exercise: interleaved
# both lists by sorting on (group, chunk, microbatch), and the turns by two iterators; the v = 1
# case by a factor
from itertools import islice, product

from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p: int, m: int, v: int) -> Schedule:
    pairs = list(product(range(m), range(v)))
    down = sorted(pairs, key=lambda pair: (pair[0] // p, pair[1], pair[0]))
    back = sorted(pairs, key=lambda pair: (pair[0] // p, -pair[1], pair[0]))

    def order_of(rank):
        forwards = (Operation("F", *pair) for pair in down)
        backwards = (Operation("B", *pair) for pair in back)
        way = (1 if v == 1 else 2) * (p - 1 - rank)
        yield from islice(forwards, (v - 1) * p + way)  # stops by itself at m * v
        for forward in forwards:
            yield forward
            yield next(backwards)
        yield from backwards

    return Schedule("interleaved", m, v, [list(order_of(rank)) for rank in range(p)])
