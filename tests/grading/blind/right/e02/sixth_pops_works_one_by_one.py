# exercise: DDP
# differs: tries to send only when the hook's own bucket has just become full; one for loop over
#   those not yet sent; works are popped one by one
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
        if not bucket.missing:
            self.send_ready()

    def send_ready(self):
        for bucket in self.buckets[len(self.works) :]:
            if len(bucket.missing) > 0:
                break
            self.works += [self.group.all_reduce(bucket.buffer, async_op=True)]

    def finish(self):
        for bucket in self.buckets[len(self.works) :]:
            while bucket.missing:
                bucket.take(next(iter(bucket.missing)), self.group.size)
            self.send_ready()
        while self.works:
            self.works.pop(0).wait()
        for bucket in self.buckets:
            bucket.missing.update(bucket.parameters)
