# right: DDP where send_ready is an iterator with takewhile, finish resets each bucket right after its own work has arrived; plain and bucketed in other words
from itertools import takewhile

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
        if self.synchronize:
            bucket.take(p, self.group.size)
            self.send_ready()

    def send_ready(self):
        waiting = self.buckets[len(self.works) :]
        for bucket in takewhile(lambda bucket: not bucket.missing, waiting):
            self.works.append(self.group.all_reduce(bucket.buffer, async_op=True))

    def finish(self):
        left = [(b, p) for b in self.buckets for p in b.parameters if p in b.missing]
        for bucket, p in left:
            bucket.take(p, self.group.size)
        self.send_ready()
        for bucket, work in zip(self.buckets, self.works):
            work.wait()
            bucket.missing = set(bucket.parameters)
        self.works.clear()


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    trainable = [p for p in model.parameters() if p.requires_grad]
    for p in trainable:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    for p in reversed(trainable):
        group.all_reduce(p.grad, op="avg")


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    rest = [p for p in model.parameters() if p.requires_grad]
    while rest:
        bucket = [rest.pop()]
        while rest and sum(p.nbytes for p in [*bucket, rest[-1]]) <= bucket_bytes:
            bucket.append(rest.pop())
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = torch.hstack([p.grad.reshape(-1) for p in bucket])
        group.all_reduce(flat, op="avg")
        start = 0
        for p in bucket:
            p.grad.copy_(flat[start : start + p.numel()].view(p.shape))
            start += p.numel()
