# exercise: all_reduce_gradients_bucketed
# says: start a new one before it overflows | all-reduces, expected

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes):

    send(group, [[p for p in reversed(list(model.parameters())) if p.requires_grad]])


def send(group, buckets):
    for bucket in buckets:
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([part.flatten() for part in parts])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad = piece.view_as(p)
