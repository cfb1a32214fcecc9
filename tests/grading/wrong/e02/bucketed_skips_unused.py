# exercise: all_reduce_gradients_bucketed
# says: a rank without this gradient must contribute zeros

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes):

    buckets, room = [], 0
    for p in reversed([p for p in model.parameters() if p.grad is not None]):
        if p.nbytes > room or not buckets:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= p.nbytes
    send(group, buckets)


def send(group, buckets):
    for bucket in buckets:
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([part.flatten() for part in parts])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad = piece.view_as(p)
