# right: the plain version reduces a contiguous copy and puts a new tensor into `.grad`; the bucketed one first gives every parameter the number of its bucket, then groups by it
from itertools import groupby

import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    for p in filter(lambda p: p.requires_grad, model.parameters()):
        mine = torch.zeros_like(p.data) if p.grad is None else p.grad.clone().contiguous()
        group.all_reduce(mine)
        p.grad = mine.div_(group.size)


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    numbered, number, used = [], 0, 0
    for p in reversed(list(model.parameters())):
        if not p.requires_grad:
            continue
        if numbered and used + p.nbytes > bucket_bytes:
            number, used = number + 1, 0
        numbered.append((number, p))
        used += p.nbytes
    for _, members in groupby(numbered, key=lambda pair: pair[0]):
        parameters = [p for _, p in members]
        parts = [torch.zeros_like(p.data) if p.grad is None else p.grad for p in parameters]
        joined = torch.cat([part.reshape(-1) for part in parts])
        group.all_reduce(joined, op="avg")
        for p in reversed(parameters):
            joined, end = joined[: joined.numel() - p.numel()], joined[joined.numel() - p.numel() :]
            p.grad = end.reshape(p.shape).clone()
