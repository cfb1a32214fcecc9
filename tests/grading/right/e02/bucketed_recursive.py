import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes):
    """Cuts off a bucket, sends it, and goes on with the rest."""
    rest = [p for p in model.parameters() if p.requires_grad][::-1]
    while rest:
        count, size = 1, rest[0].nbytes
        while count < len(rest) and size + rest[count].nbytes <= bucket_bytes:
            size += rest[count].nbytes
            count += 1
        now, rest = rest[:count], rest[count:]
        buffer = torch.zeros(sum(p.numel() for p in now), dtype=now[0].dtype)
        at = 0
        for p in now:
            view = buffer[at : at + p.numel()].view(p.shape)
            if p.grad is not None:
                view.copy_(p.grad)
            p.grad, at = view, at + p.numel()
        group.all_reduce(buffer)
        buffer /= group.size
