# right: the rest goes to inner stages from the back; schedules are sorted by the forward that each operation follows; the last rank backpropagates summed losses with a gradient of 1/total
import torch
from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.training.loss import token_weighted_loss


def split_layers(layers: int, stages: int) -> list[int]:
    counts = [layers // stages] * stages
    inner_first = [*range(stages - 2, 0, -1), *{stages - 1, 0}]
    for s in inner_first[: layers % stages]:
        counts[s] += 1
    return counts


def gpipe(p: int, m: int) -> Schedule:
    orders = []
    for _ in range(p):
        order = []
        order.extend(Operation("F", i) for i in range(m))
        order.extend(Operation("B", i) for i in range(m))
        orders.append(order)
    return Schedule("gpipe", m, 1, orders)


def _merged(forwards, backwards, ahead):
    """Backward j comes right after forward j + ahead, or after the last one."""
    end = len(forwards) - 1
    keyed = [((n, 0, n), op) for n, op in enumerate(forwards)]
    keyed += [((min(n + ahead, end), 1, n), op) for n, op in enumerate(backwards)]
    return [op for _, op in sorted(keyed, key=lambda pair: pair[0])]


def one_forward_one_backward(p: int, m: int) -> Schedule:
    kinds = [[Operation(kind, i) for i in range(m)] for kind in ("F", "B")]
    return Schedule("1f1b", m, 1, [_merged(*kinds, p - 1 - r) for r in range(p)])


def interleaved(p: int, m: int, v: int) -> Schedule:
    def nth(kind, n):
        rounds, rest = divmod(n, p * v)
        c, i = divmod(rest, p)
        return Operation(kind, rounds * p + i, c if kind == "F" else v - 1 - c)

    kinds = [[nth(kind, n) for n in range(m * v)] for kind in ("F", "B")]
    orders = []
    for r in range(p):
        ahead = p - 1 - r
        if v > 1:
            ahead = 2 * ahead + (v - 1) * p
        orders.append(_merged(*kinds, ahead))
    return Schedule("interleaved", m, v, orders)


def run_operations(group, order, stage, batches) -> torch.Tensor:
    me, n = group.rank, group.size
    total = sum(batch.tokens_counted for batch in batches)
    alive, works, sums = {}, [], []

    def F(i):
        x = None
        if me > 0:
            x = group.recv(stage.message(batches[i]), me - 1).requires_grad_()
        out = stage(x, batches[i])
        if me < n - 1:
            works.append(group.isend(out.detach(), me + 1))
        else:
            out = token_weighted_loss(out, batches[i].targets, 1)  # the sum
            sums.append(out.detach())
        alive[i] = x, out

    def B(i):
        x, out = alive.pop(i)
        if me < n - 1:
            gradient = group.recv(torch.empty_like(out), me + 1)
        else:
            gradient = torch.full_like(out, 1 / float(total))
        torch.autograd.backward(out, gradient)
        if me > 0:
            works.append(group.isend(x.grad, me - 1))

    run = {"F": F, "B": B}
    for kind, i, _ in order:
        run[kind](i)
    for work in works:
        work.wait()
    return sum(sums) / total
