# a reader's own answers, from the notebook alone
import math

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def route(x, weight, bias, k: int):
    exact = torch.promote_types(x.dtype, torch.float32)
    logits = x.to(exact) @ weight.to(exact).T
    p = logits.softmax(dim=-1)
    scores = p.detach() + bias.detach()
    experts = scores.topk(k, dim=-1).indices
    chosen = p.gather(1, experts)
    if k == 1:
        return p, experts, chosen
    weights = chosen / chosen.sum(dim=1, keepdim=True)
    return p, experts, weights


def balance_loss(group, p, experts) -> torch.Tensor:
    E, K = p.shape[1], experts.shape[1]
    counts = torch.bincount(experts.flatten(), minlength=E)
    counts = group.all_reduce(counts)
    choices = counts.sum()
    tokens = choices.to(p.dtype) / K
    f = counts.to(p.dtype) / choices.to(p.dtype)
    P = p.sum(dim=0) / tokens
    return E * (f * P).sum()


def update_bias(group, bias, experts, rate: float) -> None:
    E = len(bias)
    counts = torch.bincount(experts.flatten(), minlength=E)
    counts = group.all_reduce(counts)
    # mean - count has the sign of sum - E * count, which is a whole number
    towards = torch.sign(counts.sum() - E * counts)
    with torch.no_grad():
        bias.add_(towards.to(bias.dtype), alpha=rate)


def plan(experts, count: int, priority, factor: float | None = None):
    flat = experts.flatten()
    values = priority.flatten()
    counts = torch.bincount(flat, minlength=count)
    first = values.argsort(descending=True, stable=True)
    order = first[flat[first].argsort(stable=True)]
    if factor is None:
        return order, counts
    capacity = math.ceil(factor * flat.numel() / count)
    starts = counts.cumsum(0) - counts
    place = torch.arange(len(order), device=order.device) - starts[flat[order]]
    order = order[place < capacity]
    counts = counts.clamp(max=capacity)
    return order, counts


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    K = weights.shape[1]
    tokens = order // K
    rows = x[tokens]
    answers = experts(rows, counts)
    weighed = answers * weights.flatten()[order].unsqueeze(1)
    y = torch.zeros_like(x).index_add(0, tokens, weighed)
    return y


def exchange(group, experts, rows, counts) -> torch.Tensor:
    N = group.size
    mine = len(counts) // N
    leaving = counts.view(N, mine)
    arriving = group.all_to_all(torch.empty_like(counts), counts).view(N, mine)
    sent = leaving.sum(dim=1).tolist()
    got = arriving.sum(dim=1).tolist()
    arrived = all_to_all(rows, group, sent, got)
    expert = torch.arange(mine, device=counts.device).repeat(N)
    expert = expert.repeat_interleave(arriving.flatten())
    order = expert.argsort(stable=True)
    answers = experts(arrived[order], arriving.sum(dim=0))
    back = answers[order.argsort()]
    return all_to_all(back, group, got, sent)
