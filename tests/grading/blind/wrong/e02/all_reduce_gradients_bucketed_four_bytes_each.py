# exercise: all_reduce_gradients_bucketed
# says: here it has those of its own dtype
# Every number is counted as 4 bytes: the buckets of a float64 (or bfloat16) model get the wrong
# size.

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes):
    buckets, size = [], 0
    for p in reversed(list(model.parameters())):
        if not p.requires_grad:
            continue
        nbytes = 4 * p.numel()
        if not buckets or size + nbytes > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(p)
        size += nbytes
    for bucket in buckets:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.flatten() for g in grads])
        group.all_reduce(flat, op="avg")
        start = 0
        for p in bucket:
            p.grad = flat[start : start + p.numel()].view(p.shape)
            start += p.numel()
