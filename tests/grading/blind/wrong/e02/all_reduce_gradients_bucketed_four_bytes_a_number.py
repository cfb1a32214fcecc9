# exercise: all_reduce_gradients_bucketed
# says: those are buckets in which a number has 4 bytes
# a number is taken to have 4 bytes whatever the dtype, so in float64 a bucket holds up to twice
# `bucket_bytes` (in bfloat16 half of what fits): "a bucket of at most `bucket_bytes`", "Fill a
# bucket until the next one does not fit"

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    buckets, room = [], 0
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        size = 4 * p.numel()
        if size > room or not buckets:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= size
    for bucket in buckets:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.flatten() for g in grads])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad = piece.view_as(p)
