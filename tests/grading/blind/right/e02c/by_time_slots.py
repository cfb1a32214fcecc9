# right: 1F1B and the interleaved schedule by giving each operation a slot and sorting; layers as three joined lists; the executor has two closures and returns the number 0 on other ranks
import torch
from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.training.loss import token_weighted_loss


def split_layers(layers: int, stages: int) -> list[int]:
    base, more = layers // stages, layers % stages
    shorter = stages - more
    left = (shorter + 1) // 2  # one more short stage on the left, where they are odd
    return [base] * left + [base + 1] * more + [base] * (shorter - left)


def slot_of_forward(n, ahead):
    return n if n < ahead else ahead + 2 * (n - ahead)


def slot_of_backward(n, ahead, count):
    pairs = count - ahead
    return ahead + 2 * n + 1 if n < pairs else ahead + pairs + n


def sorted_order(forwards, backwards, ahead):
    count = len(forwards)
    slots = {slot_of_forward(n, ahead): op for n, op in enumerate(forwards)}
    for n, op in enumerate(backwards):
        slots[slot_of_backward(n, ahead, count)] = op
    return [slots[slot] for slot in sorted(slots)]


def gpipe(p: int, m: int) -> Schedule:
    order = [Operation("F" if n < m else "B", n % m) for n in range(2 * m)]
    return Schedule("gpipe", m, 1, [list(order) for _ in range(p)])


def one_forward_one_backward(p: int, m: int) -> Schedule:
    forwards = [Operation("F", i) for i in range(m)]
    backwards = [Operation("B", i) for i in range(m)]
    orders = [
        sorted_order(forwards, backwards, min(m, p - 1 - rank)) for rank in range(p)
    ]
    return Schedule("1f1b", m, 1, orders)


def interleaved(p: int, m: int, v: int) -> Schedule:
    steps = sorted(
        ((i // p, c, i) for i in range(m) for c in range(v))
    )  # by group of p, then chunk, then microbatch
    forwards = [Operation("F", i, c) for _, c, i in steps]
    backwards = [Operation("B", i, v - 1 - c) for _, c, i in steps]
    orders = []
    for rank in range(p):
        ahead = (p - 1 - rank) * (2 if v > 1 else 1) + p * (v - 1)
        orders.append(sorted_order(forwards, backwards, min(ahead, m * v)))
    return Schedule("interleaved", m, v, orders)


def run_operations(group, order, stage, batches) -> torch.Tensor:
    is_first, is_last = group.rank == 0, group.rank + 1 == group.size
    everything = sum(b.tokens_counted for b in batches)
    held, works, losses = {}, [], []

    def forward(i):
        x = None
        if not is_first:
            x = group.recv(stage.message(batches[i]), group.rank - 1)
            x.requires_grad = True
        out = stage(x, batches[i])
        if is_last:
            out = token_weighted_loss(out, batches[i].targets, everything)
            losses.append(out.detach())
        else:
            works.append(group.isend(out.detach(), group.rank + 1))
        held[i] = x, out

    def backward(i):
        x, out = held.pop(i)
        out.backward(
            None if is_last else group.recv(torch.empty_like(out), group.rank + 1)
        )
        if not is_first:
            works.append(group.isend(x.grad, group.rank - 1))

    for kind, i, _ in order:
        forward(i) if kind == "F" else backward(i)
    [work.wait() for work in works]
    return sum(losses) if is_last else 0
