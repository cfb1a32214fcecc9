# exercise: all_reduce_gradients_bucketed
# says: start a new bucket before one overflows
# Adds first and closes the bucket when it is full or over, so buckets exceed the limit and a
# large parameter shares one; "a bucket of at most `bucket_bytes`; a larger parameter gets a
# bucket to itself".

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    buckets, filled = [], bucket_bytes
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if filled >= bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(p)
        filled += p.nbytes
    for bucket in buckets:
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = torch.cat([p.grad.flatten() for p in bucket])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad.copy_(piece.view_as(p))
