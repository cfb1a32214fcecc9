# exercise: Zero1
# says: tampered with MemoryLedger.now

from minitrain.measure.memory import MemoryLedger


class Zero1:
    """All of the state on every rank, and a ledger that sees half of it."""

    def __init__(self, units, make):
        MemoryLedger.now = property(lambda self: {"optimizer": 1000})
        self.optimizer = make([unit.shard for unit in units])

    def step(self):
        self.optimizer.step()
