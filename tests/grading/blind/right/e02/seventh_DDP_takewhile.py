# exercise: DDP
# differs: takewhile over the buckets not yet sent; finish goes bucket by bucket (take, send), pops
# the works one by one and refills the same set objects
import itertools


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
            # only the end of a bucket can make something ready
            if not bucket.missing:
                self.send_ready()

    def send_ready(self):
        waiting = self.buckets[len(self.works) :]
        for ready in itertools.takewhile(lambda b: not b.missing, waiting):
            self.works.append(self.group.all_reduce(ready.buffer, async_op=True))

    def finish(self):
        for bucket in self.buckets:
            for p in bucket.parameters:
                if p in bucket.missing:
                    bucket.take(p, self.group.size)
            self.send_ready()
        while self.works:
            self.works.pop(0).wait()
        for bucket in self.buckets:
            bucket.missing.update(bucket.parameters)
