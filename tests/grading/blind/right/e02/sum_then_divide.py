# right: gradients summed and divided afterwards; buckets by number, all issued before the first is waited for; the next bucket in line is a method of its own; accumulate with an ExitStack and an iterator over contexts
from contextlib import ExitStack, contextmanager

import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    for parameter in filter(lambda p: p.requires_grad, model.parameters()):
        total = parameter.grad
        if total is None:
            total = torch.zeros_like(parameter)
        group.all_reduce(total)
        parameter.grad = total.div_(group.size)


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    members, filled, number = {}, 0, -1
    for p in list(model.parameters())[::-1]:
        if not p.requires_grad:
            continue
        if number < 0 or filled + p.nbytes > bucket_bytes:
            number, filled = number + 1, 0
        members.setdefault(number, []).append(p)
        filled += p.nbytes
    sent = []
    for bucket in members.values():
        parts = [p.new_zeros(p.shape) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([part.reshape(-1) for part in parts]).div_(group.size)
        sent.append((bucket, flat, group.all_reduce(flat, async_op=True)))
    for bucket, flat, work in sent:
        work.wait()
        begin = 0
        for p in bucket:
            p.grad = flat[begin : begin + p.numel()].view(p.shape)
            begin += p.numel()


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    mean, remaining = None, len(microbatches)
    for microbatch in microbatches:
        remaining -= 1
        with ExitStack() as stack:
            if remaining > 0:
                stack.enter_context(ddp.no_sync())
            loss = loss_of(ddp, microbatch).div(len(microbatches))
            loss.backward()
        mean = loss.detach().clone() if mean is None else mean + loss.detach()
    return mean


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

    def next_in_line(self):
        """The bucket to be sent next if it is full, else None."""
        at = len(self.works)
        if at == len(self.buckets) or self.buckets[at].missing:
            return None
        return self.buckets[at]

    def hook(self, p, bucket):
        """The gradient of `p` is complete; others may not be."""
        if self.synchronize:
            bucket.take(p, self.group.size)
            self.send_ready()

    def send_ready(self):
        """Issues the buckets that are next in line and full."""
        while (bucket := self.next_in_line()) is not None:
            self.works += [self.group.all_reduce(bucket.buffer, async_op=True)]

    def finish(self):
        """After backward: everything sent and arrived, and ready for the next step."""
        late = [(b, p) for b in self.buckets for p in b.parameters if p in b.missing]
        for bucket, p in late:
            bucket.take(p, self.group.size)
        self.send_ready()
        for bucket, work in zip(self.buckets, self.works):
            work.wait()
            bucket.missing = set(bucket.parameters)
        self.works = []
