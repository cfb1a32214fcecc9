# right: a class counts choices over ranks for the loss and the bias; plan by one sort of unique ranks (expert times the number of choices plus the place by priority); exchange is a class with a way out and a way home
import math

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


class Load:
    """The choices that each expert got on all ranks."""

    def __init__(self, group, experts, E):
        self.counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=E))
        self.choices = self.counts.sum().item()


def route(x, weight, bias, k: int):
    kind = torch.promote_types(x.dtype, torch.float32)
    p = torch.softmax((weight.to(kind) @ x.to(kind).T).T, dim=1)
    experts = torch.argsort(p + bias, dim=1, descending=True)[:, :k].contiguous()
    rows = torch.arange(len(x), device=x.device)[:, None]
    weights = p[rows, experts]
    if k != 1:
        weights = torch.div(weights, weights.sum(1)[:, None])
    return p, experts, weights


def balance_loss(group, p, experts) -> torch.Tensor:
    load, E = Load(group, experts, p.shape[1]), p.shape[1]
    tokens = load.choices / experts.shape[1]
    each = load.counts.to(p.dtype) * (E / load.choices / tokens)
    return (p * each).sum()


def update_bias(group, bias, experts, rate: float) -> None:
    load = Load(group, experts, len(bias))
    direction = torch.sign(load.choices - load.counts * len(bias))
    bias.copy_(bias + rate * direction.to(bias.dtype))


def plan(experts, count: int, priority, factor: float | None = None):
    flat = experts.flatten()
    n = len(flat)
    places = torch.empty_like(flat)
    by_priority = priority.flatten().argsort(descending=True, stable=True)
    places[by_priority] = torch.arange(n, device=flat.device)
    order = (flat * n + places).argsort()  # all keys differ
    counts = torch.bincount(flat, minlength=count)
    if factor is not None:
        capacity = math.ceil(factor * n / count)
        parts = [part[:capacity] for part in order.split(counts.tolist())]
        order, counts = torch.cat(parts), torch.clamp(counts, max=capacity)
    return order, counts


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    tokens, slot = order // weights.shape[1], order % weights.shape[1]
    answers = experts(x[tokens], counts)
    y = torch.zeros_like(x)
    return y.index_put((tokens,), answers * weights[tokens, slot][:, None], accumulate=True)


class Trip:
    def __init__(self, group, counts):
        leaving = counts.view(group.size, -1)
        arriving = group.all_to_all(torch.empty_like(leaving), leaving)
        self.group, self.sizes = group, arriving.sum(0)
        self.sent, self.got = leaving.sum(1).tolist(), arriving.sum(1).tolist()
        numbers = torch.arange(arriving.numel(), device=counts.device)
        kind = (numbers % arriving.shape[1]).repeat_interleave(arriving.flatten())
        self.order = torch.sort(kind, stable=True).indices

    def out(self, rows):
        return all_to_all(rows, self.group, self.sent, self.got)[self.order]

    def home(self, answers):
        unsorted = torch.zeros_like(answers).index_copy(0, self.order, answers)
        return all_to_all(unsorted, self.group, self.got, self.sent)


def exchange(group, experts, rows, counts) -> torch.Tensor:
    trip = Trip(group, counts)
    return trip.home(experts(trip.out(rows), trip.sizes))
