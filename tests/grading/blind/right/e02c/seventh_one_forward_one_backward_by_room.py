# exercise: one_forward_one_backward
# a generator that simulates room for p - r activations: forward while there is room, else a
# backward; no "ahead" at all
from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p: int, m: int) -> Schedule:
    def order_of(room):
        """With room for so many activations: fill it, then free one for each new one."""
        alive = forwarded = backwarded = 0
        while backwarded < m:
            if alive < room and forwarded < m:
                yield Operation("F", forwarded)
                forwarded += 1
                alive += 1
            else:
                yield Operation("B", backwarded)
                backwarded += 1
                alive -= 1

    return Schedule("1f1b", m, 1, [list(order_of(p - r)) for r in range(p)])
