# exercise: all_reduce_gradients_bucketed
# says: a rank without this gradient must contribute zeros
# Parameters without a gradient are left out of the buckets, so buckets differ from rank to
# rank.

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
        if p.grad is None:
            continue
        if size + p.nbytes > bucket_bytes:
            send(bucket)
            bucket, size = [], 0
        bucket.append(p)
        size += p.nbytes
    send(bucket)
