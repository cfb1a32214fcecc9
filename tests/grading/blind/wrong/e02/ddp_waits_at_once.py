# exercise: DDP
# says: backward stood still meanwhile
# Waits for each all-reduce right after issuing it, so backward stands still while it travels;
# section 3: "Send while you compute", "issue its all-reduce (`async_op=True`), keep the work",
# and only `finish` waits.

from contextlib import contextmanager

import torch


class Bucket:
    def __init__(self, parameters):
        self.parameters, self.missing = list(parameters), set(parameters)
        self.buffer = torch.cat([torch.zeros_like(p).flatten() for p in parameters])
        pieces = self.buffer.split([p.numel() for p in parameters])
        self.views = {p: v.view_as(p) for p, v in zip(parameters, pieces)}

    def take(self, p, ranks):
        self.views[p].copy_(0 * p.data if p.grad is None else p.grad / ranks)
        p.grad = self.views[p]
        self.missing.discard(p)


def make_buckets(model, bucket_bytes):
    lists, room = [], 0
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if p.nbytes > room or not lists:
            lists, room = [*lists, []], bucket_bytes
        lists[-1].append(p)
        room -= p.nbytes
    return [Bucket(bucket) for bucket in lists]


class Wrapper(torch.nn.Module):
    synchronize = True

    def forward(self, *inputs, **options):
        return self.module(*inputs, **options)

    @contextmanager
    def no_sync(self):
        self.synchronize = False
        yield
        self.synchronize = True


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
        while len(self.works) < len(self.buckets):
            bucket = self.buckets[len(self.works)]
            if bucket.missing:
                break
            work = self.group.all_reduce(bucket.buffer, async_op=True)
            work.wait()
            self.works.append(work)

    def finish(self):
        for bucket in self.buckets:
            for p in list(bucket.missing):
                bucket.take(p, self.group.size)
        self.send_ready()
        self.works = []
        for bucket in self.buckets:
            bucket.missing = set(bucket.parameters)
