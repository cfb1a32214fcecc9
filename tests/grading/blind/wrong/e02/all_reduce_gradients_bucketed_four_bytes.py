# exercise: all_reduce_gradients_bucketed
# says: those are buckets in which a number has 4 bytes
# counts four bytes a number whatever the dtype, so float64 buckets hold twice `bucket_bytes`
# and bfloat16 ones half ("a bucket of at most bucket_bytes")

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    buckets, room = [], 0
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        size = 4 * p.numel()
        if not buckets or size > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= size
    for bucket in buckets:
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = torch.cat([p.grad.flatten() for p in bucket])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad.copy_(piece.view_as(p))
