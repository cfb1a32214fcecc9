# exercise: Pool
# says: `hold` of a block that was free
# a free block that is held again stays in the list of free ones, and can be taken

from collections import OrderedDict


class Pool:
    def __init__(self, num_blocks: int):
        self.refs = [0] * num_blocks
        self.free = OrderedDict.fromkeys(range(num_blocks))
        self.key_of = {}
        self.block_of = {}

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
        self.key_of[block] = key
        self.block_of[key] = block

    def find(self, key) -> int | None:
        return self.block_of.get(key)

    def hold(self, block: int) -> None:
        self.refs[block] += 1

    def drop(self, block: int) -> None:
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.free[block] = None
            if block not in self.key_of:
                self.free.move_to_end(block, last=False)
