# a reader's own answers, from the notebook alone
import math

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def route(x, weight, bias, k: int):
    kind = torch.promote_types(x.dtype, torch.float32)
    logits = x.to(kind) @ weight.to(kind).T
    p = logits.softmax(dim=1)
    experts = (p + bias).topk(k, dim=1).indices
    chosen = p.gather(1, experts)
    if k == 1:
        return p, experts, chosen
    return p, experts, chosen / chosen.sum(1, keepdim=True)


def balance_loss(group, p, experts) -> torch.Tensor:
    E, K = p.shape[1], experts.shape[1]
    counts = torch.bincount(experts.flatten(), minlength=E)
    counts = group.all_reduce(counts).to(p.dtype)
    f = counts / counts.sum()
    tokens = counts.sum() / K  # of all ranks
    return E * (f * p.sum(0)).sum() / tokens


def update_bias(group, bias, experts, rate: float) -> None:
    loads = torch.bincount(experts.flatten(), minlength=len(bias))
    loads = group.all_reduce(loads).double()
    bias += rate * torch.sign(loads.mean() - loads)


def plan(experts, count: int, priority, factor: float | None = None):
    flat = experts.flatten()
    first = priority.flatten().argsort(descending=True, stable=True)
    order = first[flat[first].argsort(stable=True)]
    rows = torch.bincount(flat, minlength=count)
    if factor is None:
        return order, rows
    capacity = math.ceil(factor * len(flat) / count)
    starts = rows.cumsum(0) - rows
    place = torch.arange(len(flat)) - starts[flat[order]]
    return order[place < capacity], rows.clamp(max=capacity)


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    tokens = order // weights.shape[1]
    answers = experts(x[tokens], counts)
    weighed = answers * weights.flatten()[order].unsqueeze(1)
    y = torch.zeros_like(x)
    return y.index_add(0, tokens, weighed)


def exchange(group, experts, rows, counts) -> torch.Tensor:
    N = group.size
    own = len(counts) // N
    leaving = counts.view(N, own)
    arriving = group.all_to_all(torch.empty_like(leaving), leaving)
    sent = leaving.sum(1).tolist()
    got = arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, sent, got)
    # whose row is it: by source, then by expert
    expert = torch.arange(own).repeat(N).repeat_interleave(arriving.flatten())
    by_expert = expert.argsort(stable=True)
    answers = experts(arrived[by_expert], arriving.sum(0))
    home = answers[by_expert.argsort()]
    return all_to_all(home, group, got, sent)
