# right: all three schedules come from one function that weaves two lists; the longer stages start right after the first; the executor keeps inputs and outputs in two dictionaries and uses torch.autograd.backward
import torch
from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.training.loss import token_weighted_loss


def split_layers(layers: int, stages: int) -> list[int]:
    base, more = divmod(layers, stages)
    counts = [base for _ in range(stages)]
    for i in range(1, 1 + more):  # more < stages: the last one only where all are longer
        counts[i] += 1
    return counts


def weave(forwards, backwards, ahead):
    ahead = min(ahead, len(forwards))
    woven, rest = list(forwards[:ahead]), iter(backwards)
    for forward in forwards[ahead:]:
        woven += [forward, next(rest)]
    return woven + list(rest)


def plain(m):
    return [[Operation(kind, i) for i in range(m)] for kind in ("F", "B")]


def gpipe(p: int, m: int) -> Schedule:
    return Schedule("gpipe", m, 1, [weave(*plain(m), ahead=m) for _ in range(p)])


def one_forward_one_backward(p: int, m: int) -> Schedule:
    orders = [weave(*plain(m), ahead=p - 1 - r) for r in range(p)]
    return Schedule("1f1b", m, 1, orders)


def interleaved(p: int, m: int, v: int) -> Schedule:
    forwards, backwards = [], []
    for first in range(0, m, p):
        for chunk in range(v):
            for i in range(first, first + p):
                forwards.append(Operation("F", i, chunk))
                backwards.append(Operation("B", i, v - 1 - chunk))
    way = 1 if v == 1 else 2
    orders = [
        weave(forwards, backwards, (v - 1) * p + way * (p - 1 - r)) for r in range(p)
    ]
    return Schedule("interleaved", m, v, orders)


def run_operations(group, order, stage, batches) -> torch.Tensor:
    me, end = group.rank, group.size - 1
    tokens = sum(b.tokens_counted for b in batches)
    inputs, outputs, shares, pending = {}, {}, [], []
    for operation in order:
        i = operation[1]
        if operation[0] == "B":
            out = outputs.pop(i)
            gradient = group.recv(torch.empty_like(out), me + 1) if me < end else None
            torch.autograd.backward(out, gradient)
            del out
            x = inputs.pop(i)
            if me > 0:
                pending.append(group.isend(x.grad, me - 1))
            del x
            continue
        inputs[i] = None
        if me > 0:
            received = group.recv(stage.message(batches[i]), me - 1)
            inputs[i] = received.requires_grad_()
            del received
        outputs[i] = stage(inputs[i], batches[i])
        if me < end:
            pending.append(group.isend(outputs[i].detach(), me + 1))
        else:
            outputs[i] = token_weighted_loss(outputs[i], batches[i].targets, tokens)
            shares.append(outputs[i].detach())
    for work in pending:
        work.wait()
    return torch.stack(shares).sum() if shares else torch.tensor(0.0)
