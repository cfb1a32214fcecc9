# exercise: one_forward_one_backward
# two iterators and a count of what is alive: a rank runs a forward while it has room for one and
# one is left, else a backward
from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p: int, m: int) -> Schedule:
    def walk(room):
        forwards, backwards = iter(range(m)), iter(range(m))
        alive = 0
        for _ in range(2 * m):
            i = next(forwards, None) if alive < room else None
            if i is None:
                alive -= 1
                yield Operation("B", next(backwards))
            else:
                alive += 1
                yield Operation("F", i)

    return Schedule("1f1b", m, 1, [list(walk(room)) for room in range(p, 0, -1)])
