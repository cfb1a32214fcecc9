# exercise: Pool
# says: which can be found by a key
# a dropped block goes to the back of the line whether it has a key or not, so named content is
# lost while a block without a key is free

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
        key = self.key_of.pop(block, None)
        if key is not None and self.block_of.get(key) == block:
            del self.block_of[key]
        self.refs[block] = 1
        return block

    def name(self, block: int, key) -> None:
        old = self.key_of.pop(block, None)
        if old is not None and self.block_of.get(old) == block:
            del self.block_of[old]
        self.key_of[block] = key
        self.block_of[key] = block

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
