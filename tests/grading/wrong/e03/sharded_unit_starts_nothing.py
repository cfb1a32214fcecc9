# exercise: ShardedUnit
# says: start_gather() sent nothing

import torch

from minitrain.parallel.zero.plain_unit import FlatUnit


class ShardedUnit(FlatUnit):
    def __init__(self, module, group):
        super().__init__(module, group)
        self.shard = torch.nn.Parameter(self.shard.data.clone())
        self.work = None
        self.free()

    def start_gather(self):
        pass

    def gather(self):
        if self.work is None:
            self.full.untyped_storage().resize_(self.full.nbytes)
            self.group.all_gather(self.full, self.shard.data)
            self.work = True

    def free(self):
        self.work = None
        self.full.untyped_storage().resize_(0)
