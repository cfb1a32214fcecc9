# exercise: all_reduce_gradients_bucketed
# says: a tied one once too
# walks module by module, so a tied parameter is in the buckets twice ("A tied parameter, one
# tensor under two names, is sent once")

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    parameters = []
    for module in model.modules():
        for p in module.parameters(recurse=False):
            if p.requires_grad:
                parameters.append(p)
    buckets, room = [], 0
    for p in reversed(parameters):
        if not buckets or p.nbytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= p.nbytes
    for bucket in buckets:
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = torch.cat([p.grad.flatten() for p in bucket])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad.copy_(piece.view_as(p))
