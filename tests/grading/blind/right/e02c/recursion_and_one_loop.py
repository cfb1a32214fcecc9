# right: layers dealt by recursion from both ends inward; orders made by generators; the executor's loop handles both ends by a message function and never names first or last
import torch
from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.training.loss import token_weighted_loss


def split_layers(layers: int, stages: int) -> list[int]:
    if stages == 1:
        return [layers]
    if stages == 2:
        return [layers // 2, layers - layers // 2]
    base, more = divmod(layers, stages)
    last = base + (more == stages - 1)  # the inner stages cannot take stages - 1
    return [base] + split_layers(layers - base - last, stages - 2) + [last]


def gpipe(p: int, m: int) -> Schedule:
    def walk():
        yield from (Operation("F", i) for i in range(m))
        yield from (Operation("B", i) for i in range(m))

    return Schedule("gpipe", m, 1, [list(walk()) for _ in range(p)])


def alternate(forwards, backwards, ahead):
    for n, operation in enumerate(forwards):
        yield operation
        if n >= ahead:
            yield backwards[n - ahead]
    yield from backwards[max(0, len(forwards) - ahead) :]


def one_forward_one_backward(p: int, m: int) -> Schedule:
    lists = [[Operation(kind, i) for i in range(m)] for kind in "FB"]
    orders = [list(alternate(*lists, p - 1 - r)) for r in range(p)]
    return Schedule("1f1b", m, 1, orders)


def interleaved(p: int, m: int, v: int) -> Schedule:
    rounds = [(g * p + j, c) for g in range(m // p) for c in range(v) for j in range(p)]
    lists = (
        [Operation("F", i, c) for i, c in rounds],
        [Operation("B", i, v - 1 - c) for i, c in rounds],
    )
    orders = []
    for r in range(p):
        ahead = (v - 1) * p + (p - 1 - r)
        if v > 1:
            ahead += p - 1 - r
        orders.append(list(alternate(*lists, ahead)))
    return Schedule("interleaved", m, v, orders)


def run_operations(group, order, stage, batches) -> torch.Tensor:
    works, passes = [], {}
    total = sum(batch.tokens_counted for batch in batches)
    loss = torch.zeros(())

    def exists(rank):
        return 0 <= rank < group.size

    def receive(make_buffer, rank):
        return group.recv(make_buffer(), rank) if exists(rank) else None

    def send(tensor, rank):
        if exists(rank):
            works.append(group.isend(tensor, rank))

    for kind, i, _ in order:
        batch = batches[i]
        if kind == "F":
            x = receive(lambda: stage.message(batch), group.rank - 1)
            out = stage(x if x is None else x.requires_grad_(), batch)
            send(out.detach(), group.rank + 1)
            if not exists(group.rank + 1):
                out = token_weighted_loss(out, batch.targets, total)
                loss = loss + out.detach()
            passes[i] = x, out
        else:
            x, out = passes.pop(i)
            out.backward(receive(lambda: torch.empty_like(out), group.rank + 1))
            if x is not None:
                send(x.grad, group.rank - 1)
        x = out = None  # nothing is held from here to the next operation
    for work in works:
        work.wait()
    return loss
