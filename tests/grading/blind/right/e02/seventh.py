# a reader's own answers, from the notebook alone
from contextlib import nullcontext

import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    for p in model.parameters():
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        group.all_reduce(p.grad, op="avg")


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    trainable = [p for p in model.parameters() if p.requires_grad]
    buckets, room = [], 0
    for p in reversed(trainable):
        if not buckets or p.nbytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= p.nbytes
    for bucket in buckets:
        # what this rank did not use counts as zeros
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.flatten() for g in grads])
        group.all_reduce(flat, op="avg")
        pieces = flat.split([p.numel() for p in bucket])
        for p, piece in zip(bucket, pieces):
            p.grad = piece.view_as(p)


class DDP(Wrapper):
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
            self.works.append(work)

    def finish(self):
        for bucket in self.buckets:
            for p in list(bucket.missing):
                bucket.take(p, self.group.size)
        self.send_ready()
        for work in self.works:
            work.wait()
        self.works = []
        for bucket in self.buckets:
            bucket.missing = set(bucket.parameters)


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    count = len(microbatches)
    total = 0.0
    for i, microbatch in enumerate(microbatches):
        last = i == count - 1
        with nullcontext() if last else ddp.no_sync():
            loss = loss_of(ddp, microbatch) / count
            loss.backward()
        total = total + loss.detach()
    return total
