# exercise: ShardedUnit
# says: when nothing was gathered yet
# free() does nothing where there is no work, and so not in __init__ either: a new unit keeps
# its full until its first use.

import torch

from minitrain.parallel.zero.plain_unit import FlatUnit


class ShardedUnit(FlatUnit):
    def __init__(self, module, group):
        super().__init__(module, group)
        self.shard = torch.nn.Parameter(self.shard.data.clone())  # in memory of its own
        self.work = None  # of an all-gather
        self.free()

    def start_gather(self) -> None:
        if self.work is not None:
            return
        self.full.untyped_storage().resize_(self.full.nbytes)
        self.work = self.group.all_gather(self.full, self.shard.data, async_op=True)

    def gather(self) -> None:
        self.start_gather()
        self.work.wait()

    def free(self) -> None:
        if self.work is None:
            return
        self.work.wait()
        self.full.untyped_storage().resize_(0)
        self.work = None
