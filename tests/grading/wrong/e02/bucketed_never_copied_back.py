# exercise: all_reduce_gradients_bucketed
# says: never averaged
# says: the average was not copied back into `.grad`

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes):

    buckets, room = [], 0
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if p.nbytes > room or not buckets:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= p.nbytes
    for bucket in buckets:
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        group.all_reduce(torch.cat([part.flatten() for part in parts]), op="avg")
