# right: asynchronous single all-reduces of gradients divided beforehand; a bucket is filled, sent and copied back before the next is begun; finish sends bucket by bucket; accumulate has one no_sync around all but the last

import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    under_way = []
    for _, weight in model.named_parameters():  # a tied one only once
        if weight.requires_grad:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            else:
                weight.grad /= group.size
            under_way.append(group.all_reduce(weight.grad, async_op=True))
    for work in under_way:
        work.wait()


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    stack = [p for p in model.parameters() if p.requires_grad]
    while stack:
        bucket = [stack.pop()]
        used = bucket[0].nbytes
        while stack and used + stack[-1].nbytes <= bucket_bytes:
            used += stack[-1].nbytes
            bucket.append(stack.pop())
        flat = bucket[0].new_zeros(sum(p.numel() for p in bucket))
        pieces = flat.split([p.numel() for p in bucket])
        for p, piece in zip(bucket, pieces):
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            piece.copy_(p.grad.reshape(-1))
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, pieces):
            p.grad.copy_(piece.view_as(p))


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    def run(microbatch):
        share = loss_of(ddp, microbatch) / len(microbatches)
        share.backward()
        return share.detach()

    *others, last = microbatches
    with ddp.no_sync():
        shares = [run(microbatch) for microbatch in others]
    return torch.stack([*shares, run(last)]).sum()


class DDP(Wrapper):
    """A model whose backward leaves averaged gradients. About 14 lines of yours."""

    def __init__(self, model, group, bucket_bytes=25 * 2**20):
        super().__init__()
        self.module, self.group, self.works = model, group, []
        self.buckets = make_buckets(model, bucket_bytes)
        for bucket in self.buckets:
            for p in bucket.parameters:
                p.register_post_accumulate_grad_hook(
                    lambda p, b=bucket: self.hook(p, b)
                )

    def hook(self, p, bucket):
        """The gradient of `p` is complete; others may not be."""
        if self.synchronize:
            bucket.take(p, self.group.size)
            self.send_ready()

    def send_ready(self):
        """Issues the buckets that are next in line and full."""
        for bucket in self.buckets[len(self.works) :]:
            if bucket.missing:
                break
            self.works.append(self.group.all_reduce(bucket.buffer, async_op=True))

    def finish(self):
        """After backward: everything sent and arrived, and ready for the next step."""
        for bucket in self.buckets:
            for p in bucket.parameters:
                if p in bucket.missing:
                    bucket.take(p, self.group.size)
            self.send_ready()
        while self.works:
            self.works.pop(0).wait()
        for bucket in self.buckets:
            bucket.missing.update(bucket.parameters)
