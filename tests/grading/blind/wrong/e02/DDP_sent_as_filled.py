# exercise: DDP
# says: when it is full and all before it are sent
# A bucket is sent the moment it is full, without waiting for those before it: ranks may send in
# different orders.

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
            if not bucket.missing:
                self.works.append(self.group.all_reduce(bucket.buffer, async_op=True))

    def send_ready(self):
        for bucket in self.buckets:
            if bucket.missing:
                for p in list(bucket.missing):
                    bucket.take(p, self.group.size)
                self.works.append(self.group.all_reduce(bucket.buffer, async_op=True))

    def finish(self):
        self.send_ready()
        for work in self.works:
            work.wait()
        self.works = []
        for bucket in self.buckets:
            bucket.missing = set(bucket.parameters)
