# exercise: plan
# the two keys by Python lists, expert by expert, with sorted and islice; route by a full sort and
# a mask as wide as p
import math
from itertools import islice

import torch


def plan(experts, count, priority, factor=None):
    chosen, values = experts.flatten().tolist(), priority.flatten().tolist()
    queues = [[] for _ in range(count)]
    for choice, expert in enumerate(chosen):
        queues[expert].append(choice)
    room = None if factor is None else math.ceil(factor * len(chosen) / count)
    # Python's sort is stable with reverse=True too
    kept = [
        list(islice(sorted(queue, key=values.__getitem__, reverse=True), room))
        for queue in queues
    ]
    order = torch.tensor([c for queue in kept for c in queue], dtype=torch.int64)
    rows = torch.tensor([len(queue) for queue in kept], dtype=torch.int64)
    return order.to(experts.device), rows.to(experts.device)


def route(x, weight, bias, k):
    exact = torch.promote_types(x.dtype, torch.float32)
    logits = torch.einsum("md,ed->me", x.to(exact), weight.to(exact))
    p = torch.log_softmax(logits, dim=1).exp()
    ranking = torch.argsort(p.detach() + bias, dim=1, descending=True)
    experts = ranking[:, :k].contiguous()
    mask = torch.zeros_like(p).scatter(1, experts, 1.0)
    # as wide as p, zero where not chosen; divided before it is gathered
    wide = p * mask
    total = wide.sum(dim=1, keepdim=True) if k > 1 else 1
    return p, experts, torch.take_along_dim(wide / total, experts, dim=1)
