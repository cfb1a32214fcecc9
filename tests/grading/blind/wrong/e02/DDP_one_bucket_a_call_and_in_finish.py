# exercise: DDP
# says: a hook that fills one bucket may free full ones behind it
# send_ready sends at most one bucket (if instead of while): full ones behind it are left, and
# finish sends only one more.

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
        sent = len(self.works)
        if sent < len(self.buckets) and not self.buckets[sent].missing:
            buffer = self.buckets[sent].buffer
            self.works.append(self.group.all_reduce(buffer, async_op=True))

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
