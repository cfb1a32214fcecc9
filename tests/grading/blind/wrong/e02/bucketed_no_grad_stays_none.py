# exercise: all_reduce_gradients_bucketed
# says: A parameter that this rank did not use counts as zero in the average
# Puts zeros for a missing gradient into the bucket but copies nothing back where `.grad` is
# None; "The same average", which exercise 1 leaves "in every `.grad`".

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    buckets, room = [], 0
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if not buckets or p.nbytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= p.nbytes
    for bucket in buckets:
        flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket]
        )
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            if p.grad is not None:
                p.grad.copy_(piece.view_as(p))
