# exercise: ShardedUnit
# says: from start_gather() to free() `self.work` stays
# gather() sets work to None once it has waited: there looks like freed, and the next
# start_gather or gather sends again.

import torch

from minitrain.parallel.zero.plain_unit import FlatUnit


class ShardedUnit(FlatUnit):
    def __init__(self, module, group):
        super().__init__(module, group)
        self.shard = torch.nn.Parameter(self.shard.data.clone())  # in memory of its own
        self.work = None  # of an all-gather
        self.free()

    def start_gather(self) -> None:
        if self.work is None:
            self.full.untyped_storage().resize_(self.full.nbytes)
            self.work = self.group.all_gather(
                self.full, self.shard.data, async_op=True
            )

    def gather(self) -> None:
        self.start_gather()
        self.work.wait()
        self.work = None

    def free(self) -> None:
        if self.work is not None:
            self.work.wait()
            self.work = None
        self.full.untyped_storage().resize_(0)
