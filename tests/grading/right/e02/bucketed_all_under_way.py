import torch


def cut(parameters, limit):
    """Lists of parameters, each as long as it fits."""
    bucket, size = [], 0
    for p in parameters:
        if bucket and size + p.nbytes > limit:
            yield bucket
            bucket, size = [], 0
        bucket.append(p)
        size += p.nbytes
    if bucket:
        yield bucket


def all_reduce_gradients_bucketed(group, model, bucket_bytes):
    """Sends all buckets before it waits for the first; gradients keep their memory."""
    under_way = []
    for bucket in cut([p for p in model.parameters() if p.requires_grad][::-1], bucket_bytes):
        for p in bucket:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        flat = torch.nn.utils.parameters_to_vector([p.grad for p in bucket])
        under_way.append((bucket, group.all_reduce(flat, op="avg", async_op=True)))
    for bucket, work in under_way:
        start = 0
        for p, flat in ((p, work.wait()) for p in bucket):
            p.grad.copy_(flat[start : start + p.numel()].view_as(p))
            start += p.numel()
