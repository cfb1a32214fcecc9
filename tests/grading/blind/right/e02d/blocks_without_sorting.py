# right: experts found by a full sort; the loss as one product; the bias by two masks on exact integers; plan expert by expert; mix by a buffer of all M·K choices; exchange cuts and joins blocks without any sort
import math

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def route(x, weight, bias, k: int):
    kind = torch.promote_types(x.dtype, torch.float32)
    logits = torch.nn.functional.linear(x.to(kind), weight.to(kind))
    p = torch.softmax(logits, dim=-1)
    experts = torch.sort(p.detach() + bias, dim=-1, descending=True).indices[:, :k]
    weights = torch.take_along_dim(p, experts, dim=1)
    if k > 1:
        weights = weights / weights.sum(dim=1, keepdim=True)
    return p, experts, weights


def balance_loss(group, p, experts) -> torch.Tensor:
    E, K = p.shape[1], experts.shape[1]
    counts = torch.zeros(E, dtype=torch.int64, device=p.device)
    counts.index_add_(0, experts.reshape(-1), torch.ones_like(experts).reshape(-1))
    counts = group.all_reduce(counts).double()
    choices = counts.sum()
    scale = E * K / choices * (counts / choices)  # E f / tokens
    return (p @ scale.to(p.dtype)).sum()


def update_bias(group, bias, experts, rate: float) -> None:
    E = bias.numel()
    got = group.all_reduce(torch.bincount(experts.reshape(-1), minlength=E))
    scaled, total = got * E, got.sum()
    bias[scaled < total] += rate
    bias[scaled > total] -= rate


def plan(experts, count: int, priority, factor: float | None = None):
    flat, rank = experts.reshape(-1), priority.reshape(-1)
    most = None if factor is None else math.ceil(factor * flat.numel() / count)
    pieces = []
    for e in range(count):
        members = (flat == e).nonzero()[:, 0]
        best = torch.sort(rank[members], descending=True, stable=True).indices
        pieces.append(members[best][:most])
    sizes = [len(piece) for piece in pieces]
    return torch.cat(pieces), torch.tensor(sizes, device=flat.device)


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    M, K = weights.shape
    answers = experts(x.repeat_interleave(K, dim=0)[order], counts)
    slots = answers.new_zeros(M * K, x.shape[1]).index_copy(0, order, answers)
    return torch.einsum("mk,mkd->md", weights, slots.view(M, K, x.shape[1]))


def exchange(group, experts, rows, counts) -> torch.Tensor:
    N = group.size
    out = counts.reshape(N, -1)
    into = group.all_to_all(torch.empty_like(out), out)
    n = out.shape[1]
    sent, got = out.sum(1).tolist(), into.sum(1).tolist()
    blocks = all_to_all(rows, group, sent, got).split(into.flatten().tolist())
    mine = torch.cat([blocks[s * n + e] for e in range(n) for s in range(N)])
    answers = experts(mine, into.sum(0))
    back = answers.split(into.T.flatten().tolist())
    home = torch.cat([back[e * N + s] for s in range(N) for e in range(n)])
    return all_to_all(home, group, got, sent)
