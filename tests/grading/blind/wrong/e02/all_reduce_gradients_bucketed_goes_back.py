# exercise: all_reduce_gradients_bucketed
# says: a bucket is never gone back to: where the next does not fit, it is closed
# First fit: a gradient is put into the first bucket that still has room, also an earlier one
# ("never go back to it").

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes):
    buckets, room = [], []
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        for i in range(len(buckets)):
            if p.nbytes <= room[i]:
                break
        else:
            i = len(buckets)
            buckets.append([])
            room.append(bucket_bytes)
        buckets[i].append(p)
        room[i] -= p.nbytes
    for bucket in buckets:
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = torch.cat([p.grad.flatten() for p in bucket])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad.copy_(piece.view_as(p.grad))
