# right: the storage's size tells freed from the rest, and a second wait on a finished work costs nothing.
import torch

from minitrain.parallel.zero.plain_unit import FlatUnit


class ShardedUnit(FlatUnit):
    def __init__(self, module, group):
        super().__init__(module, group)
        self.shard = torch.nn.Parameter(self.shard.data.clone())  # in memory of its own
        self.work = None  # of an all-gather
        self.free()

    def start_gather(self) -> None:
        memory = self.full.untyped_storage()
        if memory.size() == 0:
            memory.resize_(self.full.nbytes)
            self.work = self.group.all_gather(self.full, self.shard.detach(), async_op=True)

    def gather(self) -> None:
        self.start_gather()
        self.work.wait()

    def free(self) -> None:
        if self.full.untyped_storage().size() > 0:
            if self.work is not None:
                self.work.wait()
            self.full.untyped_storage().resize_(0)
        self.work = None
