# exercise: all_reduce_gradients_bucketed
# says: a bucket is never gone back to
# Puts a parameter into the first bucket that still has room, also an earlier one; "Fill a
# bucket until the next one does not fit, and never go back to it".

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    buckets, rooms = [], []
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        for i, room in enumerate(rooms):
            if p.nbytes <= room:
                buckets[i].append(p)
                rooms[i] -= p.nbytes
                break
        else:
            buckets.append([p])
            rooms.append(bucket_bytes - p.nbytes)
    for bucket in buckets:
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = torch.cat([p.grad.flatten() for p in bucket])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad.copy_(piece.view_as(p))
