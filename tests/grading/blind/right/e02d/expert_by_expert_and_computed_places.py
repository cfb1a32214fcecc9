# right: everything another way: log-softmax, plan expert by expert, mix one column of weights at a time, bias by torch.where, and an exchange that computes each row's place in the place of a sort, as an object
import math

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def route(x, weight, bias, k: int):
    exact = torch.promote_types(x.dtype, torch.float32)
    logits = torch.nn.functional.linear(x.to(exact), weight.to(exact))
    p = logits.log_softmax(1).exp()
    _, experts = torch.topk(p + bias, k, dim=1)
    weights = torch.stack([p.gather(1, column[:, None])[:, 0] for column in experts.T], 1)
    if k > 1:
        weights = weights * weights.sum(1).reciprocal()[:, None]
    return p, experts, weights


def balance_loss(group, p, experts) -> torch.Tensor:
    E = p.size(1)
    counts = torch.stack([(experts == e).sum() for e in range(E)])
    group.all_reduce(counts)
    choices = counts.sum()
    tokens = choices / experts.size(1)
    parts = [counts[e] / choices * (p[:, e].sum() / tokens) for e in range(E)]
    return E * torch.stack(parts).sum()


def update_bias(group, bias, experts, rate: float) -> None:
    counts = torch.bincount(experts.reshape(-1), minlength=bias.shape[0])
    counts = group.all_reduce(counts).double()
    mean = counts.sum() / bias.shape[0]
    bias.copy_(torch.where(counts < mean, bias + rate, bias))
    bias.copy_(torch.where(counts > mean, bias - rate, bias))


def plan(experts, count: int, priority, factor: float | None = None):
    flat, score = experts.reshape(-1), priority.reshape(-1)
    capacity = None if factor is None else math.ceil(factor * flat.numel() / count)
    rows = []
    for e in range(count):
        own = (flat == e).nonzero()[:, 0]
        best = torch.sort(score[own], descending=True, stable=True).indices
        rows.append(own[best][:capacity])
    lengths = torch.tensor([len(own) for own in rows], device=flat.device)
    return torch.cat(rows), lengths


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    K = weights.shape[1]
    tokens, column = order // K, order % K
    answers = experts(x.index_select(0, tokens), counts)
    y = torch.zeros_like(x)
    for j in range(K):
        (rows,) = torch.nonzero(column == j, as_tuple=True)
        of = tokens[rows]  # no token twice
        y = y.index_add(0, of, (answers[rows] * weights[of, j].unsqueeze(1)).to(x.dtype))
    return y


class Journey:
    """Where the rows of a rank go, and where those that come are put."""

    def __init__(self, group, counts):
        self.group = group
        leaving = counts.reshape(group.size, -1)
        arriving = group.all_to_all(torch.empty_like(leaving), leaving)
        self.sent, self.got = leaving.sum(1).tolist(), arriving.sum(1).tolist()
        self.own = arriving.sum(0)
        sizes, turned = arriving.flatten(), arriving.T.flatten()
        here = sizes.cumsum(0) - sizes  # where a block starts, by source
        there = (turned.cumsum(0) - turned).view(arriving.T.shape).T.flatten()
        row = torch.arange(sum(self.got), device=counts.device)
        self.place = row + (there - here).repeat_interleave(sizes)
        self.row_at = torch.empty_like(self.place)
        self.row_at[self.place] = row

    def there(self, rows):
        return all_to_all(rows, self.group, self.sent, self.got)[self.row_at]

    def back(self, answers):
        return all_to_all(answers[self.place], self.group, self.got, self.sent)


def exchange(group, experts, rows, counts) -> torch.Tensor:
    journey = Journey(group, counts)
    return journey.back(experts(journey.there(rows), journey.own))
