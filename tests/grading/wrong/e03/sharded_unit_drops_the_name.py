# exercise: ShardedUnit
# says: the parameters are no views of `full` any more | To drop a name frees nothing

import torch

from minitrain.parallel.zero.plain_unit import FlatUnit


class ShardedUnit(FlatUnit):
    def __init__(self, module, group):
        super().__init__(module, group)
        self.shapes = [p.shape for p in self.parameters]
        self.shard = torch.nn.Parameter(self.shard.data.clone())
        self.work = None
        self.free()

    def start_gather(self):
        if self.work is None:
            sizes = [shape.numel() for shape in self.shapes]
            self.full = torch.zeros(self.length * self.group.size, dtype=self.shard.dtype)
            places = self.full.split(self._with_padding(sizes))
            for p, place, shape in zip(self.parameters, places, self.shapes):
                p.data = place.view(shape)
            self.work = self.group.all_gather(self.full, self.shard.data, async_op=True)

    def gather(self):
        self.start_gather()
        self.work.wait()

    def free(self):
        if self.work is not None:
            self.work.wait()
        self.work = None
        self.full = torch.empty(0, dtype=self.shard.dtype)
        for parameter in self.parameters:
            parameter.data = self.full
