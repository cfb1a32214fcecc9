# exercise: all_reduce_gradients_bucketed
# says: something is kept from one call to the next
# the flat buffers are kept for the next call and `.grad` is a view of them, so averaging a
# second model of the same sizes overwrites the gradients of the first: "The same average" as
# exercise 1, which is for "Any model, any number of calls"

import torch

_buffers = {}


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    buckets, room = [], 0
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if p.nbytes > room or not buckets:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= p.nbytes
    for i, bucket in enumerate(buckets):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        joined = torch.cat([g.flatten() for g in grads])
        key = (group.rank, group.size, i, joined.numel(), joined.dtype, joined.device)
        if key not in _buffers:
            _buffers[key] = torch.empty_like(joined)
        flat = _buffers[key]
        flat.copy_(joined)
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad = piece.view_as(p)
