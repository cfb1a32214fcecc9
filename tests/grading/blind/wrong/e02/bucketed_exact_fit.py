# exercise: all_reduce_gradients_bucketed
# says: fills a bucket to the last byte still fits
# Opens a new bucket also where the next parameter fits exactly (`>=` for `>`); "Fill a bucket
# until the next one does not fit", "at most `bucket_bytes`".

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    buckets, room = [], 0
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if not buckets or p.nbytes >= room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= p.nbytes
    for bucket in buckets:
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = torch.cat([p.grad.flatten() for p in bucket])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad.copy_(piece.view_as(p))
