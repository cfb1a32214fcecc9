# right: no three parts: each rank runs a forward while fewer than its limit are alive, else a backward; the n-th operation comes from arithmetic, not from a list
from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p: int, m: int) -> Schedule:
    orders = []
    for r in range(p):
        order, forwards, backwards = [], 0, 0
        while backwards < m:
            if forwards < m and forwards - backwards < p - r:
                order.append(Operation("F", forwards))
                forwards += 1
            else:
                order.append(Operation("B", backwards))
                backwards += 1
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)


def interleaved(p: int, m: int, v: int) -> Schedule:
    def nth(kind, n):
        turn, rest = divmod(n, p * v)
        chunk, place = divmod(rest, p)
        if kind == "B":
            chunk = v - 1 - chunk
        return Operation(kind, turn * p + place, chunk)

    def steps(r):
        after = p - 1 - r
        limit = 1 + (after if v == 1 else (v - 1) * p + 2 * after)
        done = {"F": 0, "B": 0}
        while done["B"] < m * v:
            alive = done["F"] - done["B"]
            kind = "F" if done["F"] < m * v and alive < limit else "B"
            yield nth(kind, done[kind])
            done[kind] += 1

    return Schedule("interleaved", m, v, [list(steps(r)) for r in range(p)])
