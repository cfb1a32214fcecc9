# right: a for over the unsent buckets with a break, missing.update, works made anew
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
        if not self.synchronize:
            return
        bucket.take(p, self.group.size)
        self.send_ready()

    def send_ready(self):
        for bucket in self.buckets[len(self.works):]:
            if bucket.missing:
                break
            self.works += [self.group.all_reduce(bucket.buffer, async_op=True)]

    def finish(self):
        for bucket in self.buckets[len(self.works):]:
            for p in bucket.parameters:
                if p in bucket.missing:
                    bucket.take(p, self.group.size)
        self.send_ready()
        while self.works:
            self.works.pop(0).wait()
        for bucket in self.buckets:
            bucket.missing.update(bucket.parameters)
