# right: softmax from exp and logsumexp; the loss's f in float64; the bias in double by add_; plan keeps by a mask over the choices in their own order and sorts what stays; mix puts answers back in the order of choices; exchange puts rows at places computed from cumulative sums
import math

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def route(x, weight, bias, k: int):
    kind = torch.promote_types(x.dtype, torch.float32)
    logits = x.to(kind).matmul(weight.to(kind).t())
    p = (logits - logits.logsumexp(dim=1, keepdim=True)).exp()
    _, experts = torch.topk(p + bias, k, dim=1, sorted=False)
    weights = p.gather(1, experts)
    divisor = weights.sum(1, keepdim=True) if k > 1 else 1
    return p, experts, weights / divisor


def balance_loss(group, p, experts) -> torch.Tensor:
    E = p.size(1)
    counts = torch.bincount(experts.reshape(-1), minlength=E)
    group.all_reduce(counts)
    total = counts.sum().double()
    f = counts.double() / total
    P = p.sum(dim=0) * (experts.size(1) / total).to(p.dtype)
    return E * torch.dot(f.to(p.dtype), P)


def update_bias(group, bias, experts, rate: float) -> None:
    counts = torch.bincount(experts.reshape(-1), minlength=len(bias))
    group.all_reduce(counts)
    E = len(bias)
    step = (counts * E < counts.sum()).to(bias.dtype)
    step -= (counts * E > counts.sum()).to(bias.dtype)
    bias.add_(step, alpha=rate)


def plan(experts, count: int, priority, factor: float | None = None):
    flat, value = experts.flatten(), priority.detach().flatten()
    n = len(flat)
    ranked = torch.sort(value, descending=True, stable=True).indices
    ranked = ranked[torch.sort(flat[ranked], stable=True).indices]
    load = torch.bincount(flat, minlength=count)
    if factor is None:
        return ranked, load
    room = math.ceil(factor * n / count)
    begins = torch.cat([load.new_zeros(1), load.cumsum(0)[:-1]])
    keep = torch.arange(n, device=flat.device) < begins[flat[ranked]] + room
    order = ranked[keep]
    return order, torch.bincount(flat[order], minlength=count)


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    K = weights.shape[1]
    answers = experts(x[order // K], counts)
    by_choice = order.argsort()  # the rows in the order of their choices
    choices = order[by_choice]
    weighed = answers[by_choice] * weights.reshape(-1, 1)[choices]
    index = (choices // K)[:, None].expand(-1, x.shape[1])
    return torch.zeros_like(x).scatter_add(0, index, weighed)


def exchange(group, experts, rows, counts) -> torch.Tensor:
    N = group.size
    leaving = counts.view(N, -1)
    arriving = group.all_to_all(torch.empty_like(leaving), leaving)
    sent, got = (table.sum(dim=1).tolist() for table in (leaving, arriving))
    arrived = all_to_all(rows, group, sent, got)
    ends = arriving.T.flatten().cumsum(0)  # blocks by expert, then by source
    starts = (ends - arriving.T.flatten()).view(-1, N).T.flatten()
    sizes = arriving.flatten()
    own = sizes.cumsum(0) - sizes  # where the same blocks start as they arrived
    inside = torch.arange(len(arrived), device=rows.device)
    inside = inside - own.repeat_interleave(sizes)
    place = starts.repeat_interleave(sizes) + inside  # of each arrived row
    by_expert = torch.zeros_like(arrived).index_copy(0, place, arrived)
    answers = experts(by_expert, arriving.sum(dim=0))
    return all_to_all(answers[place], group, got, sent)
