# right: stages nearest the centre get the rest; schedules by a rule on what is alive, not by three parts; the executor is a class
import torch
from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.training.loss import token_weighted_loss


def split_layers(layers: int, stages: int) -> list[int]:
    base, more = divmod(layers, stages)
    from_centre = sorted(range(stages), key=lambda s: abs(2 * s - (stages - 1)))
    longer = set(from_centre[:more])
    return [base + (s in longer) for s in range(stages)]


def gpipe(p: int, m: int) -> Schedule:
    orders = [[Operation(kind, i) for kind in "FB" for i in range(m)] for _ in range(p)]
    return Schedule("gpipe", m, 1, orders)


def _while_room(forwards, backwards, room):
    """A forward while there is one and room for what it saves, else a backward."""
    order, started, ended = [], 0, 0
    while ended < len(backwards):
        if started < len(forwards) and started - ended < room:
            order.append(forwards[started])
            started += 1
        else:
            order.append(backwards[ended])
            ended += 1
    return order


def one_forward_one_backward(p: int, m: int) -> Schedule:
    forwards = [Operation("F", i) for i in range(m)]
    backwards = [Operation("B", i) for i in range(m)]
    orders = [_while_room(forwards, backwards, p - r) for r in range(p)]
    return Schedule("1f1b", m, 1, orders)


def interleaved(p: int, m: int, v: int) -> Schedule:
    forwards, backwards = [], []
    for start in range(0, m, p):
        for c in range(v):
            for i in range(start, start + p):
                forwards.append(Operation("F", i, c))
                backwards.append(Operation("B", i, v - 1 - c))
    orders = []
    for r in range(p):
        way = p - 1 - r
        ahead = way if v == 1 else (v - 1) * p + 2 * way
        orders.append(_while_room(forwards, backwards, ahead + 1))
    return Schedule("interleaved", m, v, orders)


class _Rank:
    def __init__(self, group, stage, batches):
        self.group, self.stage, self.batches = group, stage, batches
        self.before = group.rank - 1 if group.rank > 0 else None
        self.behind = group.rank + 1 if group.rank + 1 < group.size else None
        self.total = sum(batch.tokens_counted for batch in batches)
        self.kept, self.on_the_way, self.loss = {}, [], 0

    def send(self, tensor, to):
        self.on_the_way.append(self.group.isend(tensor, to))

    def forward(self, i):
        batch, x = self.batches[i], None
        if self.before is not None:
            x = self.group.recv(self.stage.message(batch), self.before)
            x.requires_grad_()
        out = self.stage(x, batch)
        if self.behind is None:
            out = token_weighted_loss(out, batch.targets, self.total)
            self.loss = self.loss + out.detach()
        else:
            self.send(out.detach(), self.behind)
        self.kept[i] = (x, out)

    def backward(self, i):
        x, out = self.kept.pop(i)
        if self.behind is None:
            out.backward()
        else:
            out.backward(self.group.recv(torch.empty_like(out), self.behind))
        if self.before is not None:
            self.send(x.grad, self.before)

    def finish(self):
        for work in self.on_the_way:
            work.wait()
        return self.loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    rank = _Rank(group, stage, batches)
    for kind, microbatch, _ in order:
        (rank.forward if kind == "F" else rank.backward)(microbatch)
    return rank.finish()
