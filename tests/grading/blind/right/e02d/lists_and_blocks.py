# right: mask for the sum, counts by scatter, whole-number comparison, plan by Python's sort of tuples, mix by a table of all choices, exchange by a class that splits into blocks
import math

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def route(x, weight, bias, k: int):
    wide = torch.promote_types(x.dtype, torch.float32)
    p = torch.softmax(torch.einsum("md,ed->me", x.to(wide), weight.to(wide)), dim=1)
    ranked = (p.detach() + bias).argsort(dim=1, descending=True, stable=True)
    experts = ranked[:, :k].contiguous()
    weights = p.gather(1, experts)
    if k != 1:
        mask = torch.zeros_like(p).scatter(1, experts, 1.0)
        weights = weights / (p * mask).sum(1, keepdim=True)
    return p, experts, weights


def balance_loss(group, p, experts) -> torch.Tensor:
    E, K = p.shape[1], experts.shape[1]
    flat = experts.flatten()
    counts = flat.new_zeros(E).scatter_add_(0, flat, torch.ones_like(flat))
    counts = group.all_reduce(counts)
    choices = counts.sum()
    shares = counts.to(p.dtype) / choices
    return (p * shares).sum() * E * K / choices


def update_bias(group, bias, experts, rate: float) -> None:
    E = len(bias)
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=E))
    direction = torch.sign(counts.sum() - E * counts)  # of whole numbers, exact
    bias.add_(direction.to(bias.dtype), alpha=rate)


def plan(experts, count: int, priority, factor: float | None = None):
    chosen, wanted = experts.flatten().tolist(), priority.detach().flatten().tolist()
    capacity = len(chosen)
    if factor is not None:
        capacity = math.ceil(factor * len(chosen) / count)
    order, counts = [], [0] * count
    for c in sorted(range(len(chosen)), key=lambda c: (chosen[c], -wanted[c], c)):
        if counts[chosen[c]] < capacity:
            counts[chosen[c]] += 1
            order.append(c)
    to = {"dtype": torch.int64, "device": experts.device}
    return torch.tensor(order, **to), torch.tensor(counts, **to)


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    (M, D), K = x.shape, weights.shape[1]
    answers = experts(x.index_select(0, order // K), counts)
    weighed = answers * weights.reshape(M * K, 1)[order]
    table = x.new_zeros(M * K, D).index_add(0, order, weighed)  # dropped: zeros
    return table.view(M, K, D).sum(1)


class _Journey:
    def __init__(self, group, counts):
        self.group, self.n = group, group.size
        self.leaving = counts.view(self.n, -1)
        self.arriving = group.all_to_all(torch.empty_like(counts), counts)
        self.arriving = self.arriving.view(self.n, -1)
        self.sent = self.leaving.sum(1).tolist()
        self.got = self.arriving.sum(1).tolist()

    def away(self, rows):
        return all_to_all(rows, self.group, self.sent, self.got)

    def home(self, answers):
        return all_to_all(answers, self.group, self.got, self.sent)

    @staticmethod
    def turned(rows, table):
        """Blocks of the sizes in table (a, b), by a then b -> by b then a."""
        a, b = table.shape
        blocks = rows.split(table.flatten().tolist())
        return torch.cat([blocks[i * b + j] for j in range(b) for i in range(a)])


def exchange(group, experts, rows, counts) -> torch.Tensor:
    journey = _Journey(group, counts)
    by_expert = journey.turned(journey.away(rows), journey.arriving)
    answers = experts(by_expert, journey.arriving.sum(0))
    return journey.home(journey.turned(answers, journey.arriving.T))
