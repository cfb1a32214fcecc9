# exercise: all_reduce_gradients_bucketed
# says: a gradient that fills a bucket to the last byte still fits
# A gradient that fills the bucket to the last byte is taken not to fit (>= instead of >).

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes):
    def flush(bucket):
        if not bucket:
            return
        flat = torch.cat([p.grad.flatten() for p in bucket])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad = piece.view_as(p)

    bucket, filled = [], 0
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if bucket and filled + p.grad.nbytes >= bucket_bytes:
            flush(bucket)
            bucket, filled = [], 0
        bucket.append(p)
        filled += p.grad.nbytes
    flush(bucket)
