# exercise: ShardedUnit
# whether `full` is freed is read off its storage, no None tells it; `work` only serves for waiting
import torch
from minitrain.parallel.zero.plain_unit import FlatUnit


class ShardedUnit(FlatUnit):
    """A unit whose `full` has memory only between gather() and free()."""

    def __init__(self, module, group):
        super().__init__(module, group)
        own = self.shard.data.clone()  # in memory of its own
        self.shard = torch.nn.Parameter(own)
        self.work = None  # of an all-gather
        self.free()

    @property
    def _storage(self):
        return self.full.untyped_storage()

    def start_gather(self) -> None:
        if self._storage.nbytes() == 0:
            self._storage.resize_(self.full.nbytes)
            part = self.shard.detach()
            self.work = self.group.all_gather(self.full, part, async_op=True)

    def gather(self) -> None:
        self.start_gather()
        self._arrive()

    def free(self) -> None:
        self._arrive()
        self._storage.resize_(0)

    def _arrive(self):
        """Waits once for what is under way; afterwards there is no work."""
        work, self.work = self.work, None
        if work is not None:
            work.wait()
