# exercise: Pool
# says: which can be found by a key
# a dropped block without a key goes to the end of the queue like all others, so content that
# could be found is lost before it

from collections import OrderedDict


class Pool:
    def __init__(self, num_blocks: int):
        self.refs = [0] * num_blocks
        self.free = OrderedDict.fromkeys(range(num_blocks))
        self.block_of, self.key_of = {}, {}

    def available(self) -> int:
        return len(self.free)

    def take(self) -> int | None:
        if not self.free:
            return None
        block, _ = self.free.popitem(last=False)
        if block in self.key_of:
            del self.block_of[self.key_of.pop(block)]
        self.refs[block] = 1
        return block

    def name(self, block: int, key) -> None:
        self.block_of[key] = block
        self.key_of[block] = key

    def find(self, key) -> int | None:
        return self.block_of.get(key)

    def hold(self, block: int) -> None:
        if self.refs[block] == 0:
            del self.free[block]
        self.refs[block] += 1

    def drop(self, block: int) -> None:
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.free[block] = None
