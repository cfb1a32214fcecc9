# right: experts picked one after another by argmax; loss and bias from one-hot sums; plan by Python's sorted on tuples; mix adds one choice of each token at a time
import math

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def route(x, weight, bias, k: int):
    kind = torch.promote_types(x.dtype, torch.float32)
    logits = torch.einsum("md,ed->me", x.to(kind), weight.to(kind))
    p = logits.softmax(dim=1)
    scores, picks = (p + bias).detach(), []
    for _ in range(k):
        best = scores.argmax(dim=1, keepdim=True)
        scores = scores.scatter(1, best, float("-inf"))
        picks.append(best)
    experts = torch.cat(picks, dim=1)
    own = p.gather(1, experts)
    return p, experts, own if k == 1 else own / own.sum(dim=1, keepdim=True)


def balance_loss(group, p, experts) -> torch.Tensor:
    E = p.shape[1]
    numbers = torch.arange(E, device=p.device)
    counts = group.all_reduce((experts[..., None] == numbers).sum(dim=(0, 1)))
    choices = int(counts.sum())
    tokens = choices // experts.shape[1]
    loss = p.new_zeros(())
    for e in range(E):
        loss = loss + p[:, e].sum() / tokens * (int(counts[e]) / choices)
    return E * loss


def update_bias(group, bias, experts, rate: float) -> None:
    numbers = torch.arange(len(bias), device=bias.device)
    counts = group.all_reduce((experts[..., None] == numbers).sum(dim=(0, 1))).tolist()
    mean = sum(counts) / len(counts)
    for e, got in enumerate(counts):
        if got < mean:
            bias[e] += rate
        elif got > mean:
            bias[e] -= rate


def plan(experts, count: int, priority, factor: float | None = None):
    who, value = experts.flatten().tolist(), priority.flatten().tolist()
    room = len(who) if factor is None else math.ceil(factor * len(who) / count)
    order, rows = [], [0] * count
    for choice in sorted(range(len(who)), key=lambda c: (who[c], -value[c], c)):
        if rows[who[choice]] < room:
            order.append(choice)
            rows[who[choice]] += 1
    as_tensor = {"dtype": torch.int64, "device": experts.device}
    return torch.tensor(order, **as_tensor), torch.tensor(rows, **as_tensor)


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    K = weights.shape[1]
    tokens, which = order.div(K, rounding_mode="floor"), order % K
    answers = experts(x.index_select(0, tokens), counts)
    y = torch.zeros_like(x)
    for k in range(K):
        own = (which == k).nonzero()[:, 0]  # no token twice in here
        scale = weights[tokens[own], k].unsqueeze(1)
        y = y.index_add(0, tokens[own], scale * answers[own])
    return y


def exchange(group, experts, rows, counts) -> torch.Tensor:
    ranks, own = group.size, counts.numel() // group.size
    theirs = torch.empty_like(counts)
    theirs = group.all_to_all(theirs, counts).reshape(ranks, own)
    sent = [int(c.sum()) for c in counts.chunk(ranks)]
    got = [int(c.sum()) for c in theirs]
    arrived = all_to_all(rows, group, sent, got)
    places = torch.arange(len(arrived), device=rows.device)
    table = places.split(theirs.flatten().tolist())
    to_expert = torch.cat([table[s * own + e] for e in range(own) for s in range(ranks)])
    answers = experts(arrived[to_expert], theirs.sum(dim=0))
    home = torch.empty_like(to_expert)
    home[to_expert] = places
    return all_to_all(answers[home], group, got, sent)
