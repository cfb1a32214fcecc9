# exercise: all_reduce_gradients_bucketed
# differs: a generator yields the buckets, gradients are copied into a made buffer and copied back
#   into .grad; a sum, then a division
import torch


def _plan(model, limit):
    bucket, used = [], 0
    for p in [p for p in model.parameters() if p.requires_grad][::-1]:
        size = p.numel() * p.element_size()
        if bucket and used + size > limit:
            yield bucket
            bucket, used = [], 0
        bucket.append(p)
        used += size
    if bucket:
        yield bucket


@torch.no_grad()
def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    for bucket in _plan(model, bucket_bytes):
        flat = bucket[0].new_zeros(sum(p.numel() for p in bucket))
        at = 0
        for p in bucket:
            if p.grad is not None:
                flat[at : at + p.numel()] = p.grad.reshape(-1)
            at += p.numel()
        group.all_reduce(flat)
        flat.div_(group.size)
        at = 0
        for p in bucket:
            if p.grad is None:
                p.grad = torch.empty_like(p)
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()
