# exercise: DDP
# says: this one sends buckets that it has not filled
# finish forgets to make every `missing` full again: in the second step all buckets count as
# full at the first hook.

import torch


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
                return
            self.works.append(self.group.all_reduce(bucket.buffer, async_op=True))

    def finish(self):
        for bucket in self.buckets:
            for p in list(bucket.missing):
                bucket.take(p, self.group.size)
        self.send_ready()
        for work in self.works:
            work.wait()
        self.works.clear()
