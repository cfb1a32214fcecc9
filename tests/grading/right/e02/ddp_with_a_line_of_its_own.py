from contextlib import contextmanager

import torch


class DDP(torch.nn.Module):
    """Its buffers hold sums until they have arrived; a line of buckets, and a flag for each."""

    def __init__(self, model, group, bucket_bytes=25 * 2**20):
        super().__init__()
        self.module, self.group, self.quiet = model, group, False
        line, room = [], 0
        for p in [p for p in model.parameters() if p.requires_grad][::-1]:
            if not line or p.nbytes > room:
                line.append([])
                room = bucket_bytes
            line[-1].append(p)
            room -= p.nbytes
        self.line = line
        for number, bucket in enumerate(line):
            for p in bucket:
                p.register_post_accumulate_grad_hook(lambda p, n=number: self.ready(p, n))
        self.reset()

    def reset(self):
        self.left = [{id(p) for p in bucket} for bucket in self.line]
        self.next, self.flying = 0, []

    def forward(self, *a, **k):
        return self.module(*a, **k)

    @contextmanager
    def no_sync(self):
        self.quiet = True
        try:
            yield
        finally:
            self.quiet = False

    def ready(self, p, number):
        if self.quiet:
            return
        self.left[number].discard(id(p))
        while self.next < len(self.line) and not self.left[self.next]:
            self.launch()

    def launch(self):
        bucket = self.line[self.next]
        flat = torch.cat(
            [(0 * p if p.grad is None else p.grad).detach().reshape(-1) for p in bucket]
        )
        self.flying.append((bucket, flat, self.group.all_reduce(flat, async_op=True)))
        self.next += 1

    def finish(self):
        while self.next < len(self.line):
            self.launch()
        for bucket, flat, work in self.flying:
            work.wait()
            for p, piece in zip(
                bucket, (flat / self.group.size).split([p.numel() for p in bucket])
            ):
                p.grad = piece.view_as(p)
        self.reset()
