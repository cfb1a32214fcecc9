from contextlib import contextmanager

import torch


class DDP(torch.nn.Module):
    """Counts down to a full bucket; gradients are joined at the last moment and copied back."""

    def __init__(self, model, group, bucket_bytes=25 * 2**20):
        super().__init__()
        self.model, self.group, self.sends = model, group, True
        self.plan, size = [[]], 0
        for p in reversed(list(model.parameters())):
            if not p.requires_grad:
                continue
            if self.plan[-1] and size + p.nbytes > bucket_bytes:
                self.plan.append([])
                size = 0
            self.plan[-1].append(p)
            size += p.nbytes
            p.register_post_accumulate_grad_hook(self.arrived)
        self.start_over()

    def start_over(self):
        self.here, self.sent = set(), []

    @contextmanager
    def no_sync(self):
        self.sends = False
        yield
        self.sends = True

    def arrived(self, p):
        if self.sends:
            self.here.add(p)
            self.advance()

    def advance(self, everything=False):
        for bucket in self.plan[len(self.sent) :]:
            if not everything and not all(p in self.here for p in bucket):
                return
            flat = torch.cat(
                [
                    torch.zeros(p.numel(), dtype=p.dtype) if p.grad is None else p.grad.flatten()
                    for p in bucket
                ]
            )
            self.sent.append((flat, self.group.all_reduce(flat, op="avg", async_op=True)))

    def forward(self, *args, **kwargs):
        return self.model(*args, **kwargs)

    def finish(self):
        self.advance(everything=True)
        for bucket, (flat, work) in zip(self.plan, self.sent):
            averaged = work.wait()
            for p, piece in zip(bucket, averaged.split([p.numel() for p in bucket])):
                p.grad = piece.view(p.shape).clone()
        self.start_over()
