# exercise: all_reduce_gradients_bucketed
# says: those are buckets in which a number has 4 bytes
# Counts 4 bytes an element whatever the dtype: float64 buckets become twice as large as
# allowed.

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    def send(bucket):
        if not bucket:
            return
        flat = torch.cat([p.grad.flatten() for p in bucket])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad = piece.view_as(p)

    bucket, size = [], 0
    for p in reversed(list(model.parameters())):
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if size + 4 * p.numel() > bucket_bytes:
            send(bucket)
            bucket, size = [], 0
        bucket.append(p)
        size += 4 * p.numel()
    send(bucket)
