import torch
from torch import nn

from minitrain.parallel.zero.plain_unit import FlatUnit


class ShardedUnit(FlatUnit):
    def __init__(self, module, group):
        super().__init__(module, group)
        self.shard = nn.Parameter(self.shard.detach().clone())
        self.pending, self.here = None, False
        self.full.untyped_storage().resize_(0)

    def start_gather(self):
        if self.here or self.pending:
            return
        storage = self.full.untyped_storage()
        storage.resize_(self.full.numel() * self.full.element_size())
        self.pending = self.group.all_gather(self.full, self.shard.detach(), async_op=True)

    def gather(self):
        self.start_gather()
        if self.pending:
            self.pending.wait()
            self.pending, self.here = None, True

    def free(self):
        if self.pending:
            self.gather()
        self.here = False
        self.full.untyped_storage().resize_(0)
