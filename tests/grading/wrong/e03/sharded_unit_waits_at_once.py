# exercise: ShardedUnit
# says: start_gather() waited

import torch

from minitrain.parallel.zero.plain_unit import FlatUnit


class ShardedUnit(FlatUnit):
    def __init__(self, module, group):
        super().__init__(module, group)
        self.shard = torch.nn.Parameter(self.shard.data.clone())
        self.work = None
        self.free()

    def start_gather(self):
        if self.work is None:
            self.full.untyped_storage().resize_(self.full.nbytes)
            self.work = self.group.all_gather(self.full, self.shard.data, async_op=True)
            self.work.wait()

    def gather(self):
        self.start_gather()
        self.work.wait()

    def free(self):
        if self.work is not None:
            self.work.wait()
        self.work = None
        self.full.untyped_storage().resize_(0)
