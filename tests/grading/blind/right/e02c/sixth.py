# a reader's own answers, from the notebook alone
import torch

from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.training.loss import token_weighted_loss


def split_layers(layers: int, stages: int) -> list[int]:
    """Layers of each stage, even, the remainder in the middle."""
    base, more = divmod(layers, stages)
    first = (stages - more) // 2
    counts = [base] * stages
    for stage in range(first, first + more):
        counts[stage] += 1
    return counts


def gpipe(p: int, m: int) -> Schedule:
    """All forwards, then all backwards, the same on every rank."""
    forwards = [Operation("F", i) for i in range(m)]
    backwards = [Operation("B", i) for i in range(m)]
    return Schedule("gpipe", m, 1, [forwards + backwards for _ in range(p)])


def one_forward_one_backward(p: int, m: int) -> Schedule:
    """1F1B for p ranks and m microbatches: rank r holds p-r at most."""
    orders = []
    for rank in range(p):
        ahead = min(p - 1 - rank, m)
        order = [Operation("F", i) for i in range(ahead)]
        for i in range(m - ahead):
            order.append(Operation("F", ahead + i))
            order.append(Operation("B", i))
        order += [Operation("B", i) for i in range(m - ahead, m)]
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)


def run_operations(group, order, stage, batches) -> torch.Tensor:
    """Runs this rank's order; gradients are added to .grad."""
    rank, last = group.rank, group.size - 1
    total = sum(batch.tokens_counted for batch in batches)
    loss = torch.zeros(())
    passes, works = {}, []
    for kind, i, _ in order:
        batch = batches[i]
        if kind == "F":
            x = None
            if rank > 0:
                x = group.recv(stage.message(batch), rank - 1).requires_grad_()
            out = stage(x, batch)
            if rank == last:
                out = token_weighted_loss(out, batch.targets, total)
                loss = loss + out.detach()
            else:
                works.append(group.isend(out.detach(), rank + 1))
            passes[i] = x, out
        else:
            x, out = passes.pop(i)
            dy = None
            if rank < last:
                dy = group.recv(torch.empty_like(out), rank + 1)
            out.backward(dy)
            if rank > 0:
                works.append(group.isend(x.grad, rank - 1))
        del x, out
    for work in works:
        work.wait()
    return loss


def interleaved(p: int, m: int, v: int) -> Schedule:
    """1F1B over v chunks a rank; p divides m."""
    groups = [range(start, start + p) for start in range(0, m, p)]
    forwards, backwards = [], []
    for group in groups:
        for chunk in range(v):
            forwards += [Operation("F", i, chunk) for i in group]
        for chunk in reversed(range(v)):
            backwards += [Operation("B", i, chunk) for i in group]
    orders = []
    for rank in range(p):
        way = p - 1 - rank
        ahead = way if v == 1 else (v - 1) * p + 2 * way
        ahead = min(ahead, m * v)
        order = forwards[:ahead]
        for forward, backward in zip(forwards[ahead:], backwards):
            order += [forward, backward]
        order += backwards[m * v - ahead :]
        orders.append(order)
    return Schedule("interleaved", m, v, orders)
