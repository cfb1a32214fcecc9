# exercise: all_reduce_gradients_bucketed
# says: fills a bucket to the last byte still fits
# Off by one: a parameter that fills the bucket exactly to the byte opens a new bucket (>= for
# >).

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
        if size + p.nbytes >= bucket_bytes:
            send(bucket)
            bucket, size = [], 0
        bucket.append(p)
        size += p.nbytes
    send(bucket)
