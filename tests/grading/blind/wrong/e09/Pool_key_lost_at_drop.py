# exercise: Pool
# says: a block keeps its key when nobody holds it
# the key is forgotten when the last holder drops the block, not when the block is taken: a free
# block cannot be found

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
            if block in self.key_of:
                del self.block_of[self.key_of.pop(block)]
