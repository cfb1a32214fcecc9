# right: DDP sends by takewhile; accumulate divides beside the backward and takes the mean of whole losses; buckets are popped off the end of the list, divided first and summed
from contextlib import contextmanager, nullcontext
from itertools import takewhile

import torch


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
        rest = self.buckets[len(self.works) :]
        full = list(takewhile(lambda bucket: not bucket.missing, rest))
        self.works += [self.group.all_reduce(b.buffer, async_op=True) for b in full]

    def finish(self):
        """After backward: everything sent and arrived, and ready for the next step."""
        late = [(b, p) for b in self.buckets for p in b.missing]
        for bucket, p in late:
            bucket.take(p, self.group.size)
        self.send_ready()
        works, self.works = self.works, []
        for work in works:
            work.wait()
        for bucket in self.buckets:
            bucket.missing = {*bucket.parameters}


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    losses, left = [], len(microbatches)
    for microbatch in microbatches:
        left -= 1
        context = ddp.no_sync() if left else nullcontext()
        with context:
            loss = loss_of(ddp, microbatch)
            (loss / len(microbatches)).backward()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    waiting = [p for p in model.parameters() if p.requires_grad]
    while waiting:
        bucket = [waiting.pop()]
        filled = bucket[0].nbytes
        while waiting and filled + waiting[-1].nbytes <= bucket_bytes:
            filled += waiting[-1].nbytes
            bucket.append(waiting.pop())
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.flatten() for g in gradients]) / group.size
        group.all_reduce(flat)
        pieces = flat.split([p.numel() for p in bucket])
        for p, gradient, piece in zip(bucket, gradients, pieces):
            gradient.copy_(piece.view_as(p))
            p.grad = gradient
