# right: the middle by distance from the centre; 1F1B by a greedy rule on what is alive; the interleaved lists by arithmetic on a counter; the executor is a class with one method a kind
import torch
from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.training.loss import token_weighted_loss


def split_layers(layers: int, stages: int) -> list[int]:
    from_centre = sorted(range(stages), key=lambda i: abs(2 * i - (stages - 1)))
    longer = set(from_centre[: layers % stages])
    return [layers // stages + (1 if i in longer else 0) for i in range(stages)]


def gpipe(p: int, m: int) -> Schedule:
    orders = [[Operation(kind, i) for kind in "FB" for i in range(m)] for _ in range(p)]
    return Schedule("gpipe", m, 1, orders)


def one_forward_one_backward(p: int, m: int) -> Schedule:
    orders = []
    for most in range(p, 0, -1):  # what the rank may hold, p-r
        order, begun, ended = [], 0, 0
        while ended < m:
            if begun < m and begun - ended < most:
                order.append(Operation("F", begun))
                begun += 1
            else:
                order.append(Operation("B", ended))
                ended += 1
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)


def interleaved(p: int, m: int, v: int) -> Schedule:
    def nth(kind, n):
        group, inside = divmod(n, p * v)
        chunk, place = divmod(inside, p)
        return Operation(kind, group * p + place, chunk if kind == "F" else v - 1 - chunk)

    def order(r):
        below = p - 1 - r
        ahead = below if v == 1 else min(m * v, (v - 1) * p + 2 * below)
        walk = []
        for n in range(m * v + ahead):
            if n < m * v:
                walk.append(nth("F", n))
            if n >= ahead:
                walk.append(nth("B", n - ahead))
        return walk

    return Schedule("interleaved", m, v, [order(r) for r in range(p)])


class Walker:
    def __init__(self, group, stage, batches):
        self.group, self.stage, self.batches = group, stage, batches
        self.total = sum(batch.tokens_counted for batch in batches)
        self.before = group.rank - 1 if group.rank > 0 else None
        self.behind = group.rank + 1 if group.rank < group.size - 1 else None
        self.alive, self.sent, self.loss = {}, [], torch.zeros(())

    def F(self, i):
        batch, x = self.batches[i], None
        if self.before is not None:
            x = self.group.recv(self.stage.message(batch), self.before)
            x.requires_grad_(True)
        out = self.stage(x, batch)
        if self.behind is None:
            out = token_weighted_loss(out, batch.targets, self.total)
            self.loss = self.loss + out.detach()
        else:
            self.sent.append(self.group.isend(out.detach(), self.behind))
        self.alive[i] = (x, out)

    def B(self, i):
        x, out = self.alive.pop(i)
        if self.behind is None:
            out.backward()
        else:
            out.backward(self.group.recv(torch.empty_like(out), self.behind))
        if self.before is not None:
            self.sent.append(self.group.isend(x.grad, self.before))


def run_operations(group, order, stage, batches) -> torch.Tensor:
    walker = Walker(group, stage, batches)
    for kind, i, _ in order:
        getattr(walker, kind)(i)
    for work in walker.sent:
        work.wait()
    return walker.loss
