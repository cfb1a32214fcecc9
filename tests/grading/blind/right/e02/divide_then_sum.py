# right: gradients are divided by the number of ranks first and then summed; buckets come from a generator, `.grad` becomes a view of the flat buffer; accumulate uses one no_sync block for all but the last
import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    for parameter in dict.fromkeys(model.parameters()):
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = parameter.detach().new_zeros(parameter.shape)
        parameter.grad /= group.size
        group.all_reduce(parameter.grad)


def filled(parameters, limit):
    """Lists of parameters, each as soon as it is closed."""
    bucket, used = [], 0
    for parameter in parameters:
        if bucket and used + parameter.nbytes > limit:
            yield bucket
            bucket, used = [], 0
        bucket.append(parameter)
        used += parameter.nbytes
    if bucket:
        yield bucket


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    backwards = [p for p in model.parameters() if p.requires_grad][::-1]
    for bucket in filled(backwards, bucket_bytes):
        flat = bucket[0].detach().new_zeros(sum(p.numel() for p in bucket))
        start, views = 0, []
        for p in bucket:
            views.append(flat[start : start + p.numel()].view(p.shape))
            if p.grad is not None:
                torch.div(p.grad, group.size, out=views[-1])
            start += p.numel()
        group.all_reduce(flat)
        for p, view in zip(bucket, views):
            p.grad = view


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    *early, final = microbatches
    losses = []

    def run(microbatch):
        loss = loss_of(ddp, microbatch)
        (loss / len(microbatches)).backward()
        losses.append(loss.detach())

    with ddp.no_sync():
        for microbatch in early:
            run(microbatch)
    run(final)
    return torch.stack(losses).mean()
