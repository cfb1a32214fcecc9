# exercise: all_reduce_gradients_bucketed
# says: something is kept from one call to the next
# keeps the first call's buckets on the model, so a later call with another `bucket_bytes` (or
# after freezing) uses the old ones ("a bucket of at most bucket_bytes")

import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    if not hasattr(model, "_bucket_plan"):  # the plan is the same in every step
        plan, room = [], 0
        for p in reversed([p for p in model.parameters() if p.requires_grad]):
            if not plan or p.nbytes > room:
                plan.append([])
                room = bucket_bytes
            plan[-1].append(p)
            room -= p.nbytes
        model._bucket_plan = plan
    for bucket in model._bucket_plan:
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = torch.cat([p.grad.flatten() for p in bucket])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad.copy_(piece.view_as(p))
