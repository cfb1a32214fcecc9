# exercise: all_reduce_gradients_bucketed
# says: a bucket is never gone back to, also after a gradient that is larger
# a parameter larger than a bucket gets one to itself, but the bucket before it stays open and
# takes the smaller ones that follow: "Fill a bucket until the next one does not fit, and never
# go back to it"

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    buckets, current, room = [], None, 0
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if p.nbytes > bucket_bytes:
            buckets.append([p])  # a bucket to itself
            continue
        if current is None or p.nbytes > room:
            current, room = [], bucket_bytes
            buckets.append(current)
        current.append(p)
        room -= p.nbytes
    for bucket in buckets:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.flatten() for g in grads])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad = piece.view_as(p)
