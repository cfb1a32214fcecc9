# right: k largest one after another, one-hot counts, two masked updates of the bias, plan expert by expert, mix slot by slot, exchange with an inverse made by writing
import math

import torch
import torch.nn.functional as F
from minitrain.parallel.collectives.differentiable import all_to_all


def route(x, weight, bias, k: int):
    dtype = torch.promote_types(x.dtype, torch.float32)
    p = F.softmax(F.linear(x.to(dtype), weight.to(dtype)), dim=-1)
    left, picks = p.detach() + bias, []
    for _ in range(k):
        best = left.argmax(dim=1, keepdim=True)
        left = left.scatter(1, best, -math.inf)
        picks.append(best)
    experts = torch.cat(picks, dim=1)
    chosen = torch.take_along_dim(p, experts, dim=1)
    return p, experts, chosen if k == 1 else chosen / chosen.sum(-1, keepdim=True)


def balance_loss(group, p, experts) -> torch.Tensor:
    E, K = p.shape[1], experts.shape[1]
    counts = group.all_reduce(F.one_hot(experts.flatten(), E).sum(0))
    f = counts.to(p.dtype) / counts.sum()
    return (p @ f).sum() * E * K / counts.sum()


def update_bias(group, bias, experts, rate: float) -> None:
    E = len(bias)
    counts = group.all_reduce(torch.bincount(experts.reshape(-1), minlength=E))
    total = counts.sum()
    bias[counts * E < total] += rate
    bias[counts * E > total] -= rate


def plan(experts, count: int, priority, factor: float | None = None):
    flat, wanted = experts.flatten(), priority.flatten()
    capacity = None if factor is None else math.ceil(factor * len(flat) / count)
    parts = []
    for e in range(count):
        mine = (flat == e).nonzero().flatten()
        best = wanted[mine].argsort(descending=True, stable=True)
        parts.append(mine[best][:capacity])
    counts = torch.tensor([len(part) for part in parts], device=flat.device)
    return torch.cat(parts), counts


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    K = weights.shape[1]
    token, slot = order // K, order % K
    answers = experts(x[token], counts)
    y = torch.zeros_like(x)
    for k in range(K):
        rows = (slot == k).nonzero().flatten()
        t = token[rows]
        y = y.index_add(0, t, answers[rows] * weights[t, k].unsqueeze(1))
    return y


def exchange(group, experts, rows, counts) -> torch.Tensor:
    n = group.size
    mine = len(counts) // n
    to = counts.view(n, mine)
    here = group.all_to_all(torch.empty_like(to), to)
    sent, got = to.sum(1).tolist(), here.sum(1).tolist()
    arrived = all_to_all(rows, group, sent, got)
    numbers = torch.arange(len(arrived), device=rows.device)
    blocks = numbers.split(here.flatten().tolist())
    by_expert = torch.cat([blocks[s * mine + e] for e in range(mine) for s in range(n)])
    back = torch.empty_like(by_expert)
    back[by_expert] = numbers
    answers = experts(arrived[by_expert], here.sum(0))
    return all_to_all(answers[back], group, got, sent)
