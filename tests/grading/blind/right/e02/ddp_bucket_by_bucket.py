# right: DDP with a for loop over the buckets not yet sent, finish takes and sends bucket by bucket, and resets the sets in place; accumulate enters no_sync by an ExitStack
from contextlib import ExitStack, contextmanager

import torch


class DDP(Wrapper):
    """A model whose backward leaves averaged gradients."""

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
        if not self.synchronize:
            return
        bucket.take(p, self.group.size)
        self.send_ready()

    def send_ready(self):
        for bucket in self.buckets[len(self.works) :]:
            if len(bucket.missing) > 0:
                return
            self.works += [self.group.all_reduce(bucket.buffer, async_op=True)]

    def finish(self):
        for bucket in self.buckets:
            for p in bucket.parameters:
                if p in bucket.missing:
                    bucket.take(p, self.group.size)
            self.send_ready()
        while self.works:
            self.works.pop(0).wait()
        for bucket in self.buckets:
            bucket.missing.update(bucket.parameters)


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    left, mean = len(microbatches), []
    for microbatch in microbatches:
        left -= 1
        with ExitStack() as stack:
            if left > 0:
                stack.enter_context(ddp.no_sync())
            part = loss_of(ddp, microbatch).div(len(microbatches))
            part.backward()
        mean.append(part.detach())
        del part
    return torch.stack(mean).sum()
