# a reader's own answers, from the notebook alone
import torch
from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.training.loss import token_weighted_loss


def split_layers(layers: int, stages: int) -> list[int]:
    base, more = divmod(layers, stages)
    start = (stages - more) // 2  # the longer stages stand together in the middle
    counts = [base] * stages
    for stage in range(start, start + more):
        counts[stage] += 1
    return counts


def gpipe(p: int, m: int) -> Schedule:
    forwards = [Operation("F", i) for i in range(m)]
    backwards = [Operation("B", i) for i in range(m)]
    return Schedule("gpipe", m, 1, [forwards + backwards for _ in range(p)])


def one_forward_one_backward(p: int, m: int) -> Schedule:
    orders = []
    for r in range(p):
        # as many forwards as there are ranks below
        ahead = min(p - 1 - r, m)
        order = [Operation("F", i) for i in range(ahead)]
        for i in range(ahead, m):
            order.append(Operation("F", i))
            order.append(Operation("B", i - ahead))
        order += [Operation("B", i) for i in range(m - ahead, m)]
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)


def run_operations(group, order, stage, batches) -> torch.Tensor:
    first = group.rank == 0
    last = group.rank == group.size - 1
    total = sum(batch.tokens_counted for batch in batches)
    passes = {}
    works = []
    loss = torch.tensor(0.0)
    for kind, i, _ in order:
        batch = batches[i]
        if kind == "F":
            x = None
            if not first:
                x = group.recv(stage.message(batch), group.rank - 1)
                x.requires_grad_()
            out = stage(x, batch)
            if last:
                out = token_weighted_loss(out, batch.targets, total)
                loss = loss + out.detach()
            else:
                works.append(group.isend(out.detach(), group.rank + 1))
            passes[i] = x, out
        else:
            x, out = passes.pop(i)
            dy = None
            if not last:
                dy = group.recv(torch.empty_like(out), group.rank + 1)
            out.backward(dy)
            if not first:
                works.append(group.isend(x.grad, group.rank - 1))
    for work in works:
        work.wait()
    return loss


def interleaved(p: int, m: int, v: int) -> Schedule:
    forwards, backwards = [], []
    for start in range(0, m, p):
        some = range(start, start + p)
        for c in range(v):
            forwards += [Operation("F", i, c) for i in some]
        for c in reversed(range(v)):
            backwards += [Operation("B", i, c) for i in some]
    orders = []
    for r in range(p):
        if v == 1:
            ahead = p - 1 - r
        else:
            ahead = (v - 1) * p + 2 * (p - 1 - r)
        ahead = min(ahead, m * v)
        order = forwards[:ahead]
        for forward, backward in zip(forwards[ahead:], backwards):
            order += [forward, backward]
        order += backwards[m * v - ahead :]
        orders.append(order)
    return Schedule("interleaved", m, v, orders)
