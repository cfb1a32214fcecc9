# exercise: ShardedUnit
# says: without a gather() between
# free does nothing while a gather is only started, so `full` keeps its bytes and shards still
# arrive; docstring of free: "`full` has 0 bytes; nothing is still arriving in it".

import torch
from minitrain.parallel.zero.plain_unit import FlatUnit


class ShardedUnit(FlatUnit):
    """A unit whose `full` has memory only between gather() and free()."""

    def __init__(self, module, group):
        super().__init__(module, group)
        self.shard = torch.nn.Parameter(self.shard.data.clone())  # no view any more
        self.work = None  # the gather under way, or over; None: `full` is freed
        self.there = True  # `full` may be read
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
        self.there = True

    def free(self) -> None:
        if self.there:  # what is not there need not be freed
            self.there = False
            self.work = None
            self.full.untyped_storage().resize_(0)
