# exercise: all_reduce_gradients_bucketed
# differs: a generator makes the buckets, a flat zero buffer is filled slice by slice, a sum is
# divided afterwards, and .grad is copied into in place where it exists
import torch


def _buckets(parameters, limit):
    current, used = [], 0
    for p in parameters:
        size = p.numel() * p.element_size()
        if current and used + size > limit:
            yield current
            current, used = [], 0
        current.append(p)
        used += size
    if current:
        yield current


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    trainable = [p for p in model.parameters() if p.requires_grad]
    for bucket in _buckets(trainable[::-1], bucket_bytes):
        flat = bucket[0].detach().new_zeros(sum(p.numel() for p in bucket))
        slots, start = [], 0
        for p in bucket:
            slots.append(flat[start : start + p.numel()].view(p.shape))
            start += p.numel()
            if p.grad is not None:
                slots[-1].copy_(p.grad)
        group.all_reduce(flat)
        flat /= group.size
        for p, slot in zip(bucket, slots):
            if p.grad is None:
                p.grad = slot.clone()
            else:
                p.grad.copy_(slot)
