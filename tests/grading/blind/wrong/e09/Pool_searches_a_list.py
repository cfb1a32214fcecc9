# exercise: Pool
# says: something searches through the free ones
# the free blocks stand in a list, which hold() and take() search through: time grows with the
# number of blocks

class Pool:
    def __init__(self, num_blocks: int):
        self.refs = [0] * num_blocks
        self.free = list(range(num_blocks))
        self.block_of = {}
        self.key_of = {}

    def available(self) -> int:
        return len(self.free)

    def take(self) -> int | None:
        if not self.free:
            return None
        block = next((b for b in self.free if b not in self.key_of), self.free[0])
        self.free.remove(block)
        key = self.key_of.pop(block, None)
        if key is not None and self.block_of.get(key) == block:
            del self.block_of[key]
        self.refs[block] = 1
        return block

    def name(self, block: int, key) -> None:
        old = self.key_of.pop(block, None)
        if old is not None and self.block_of.get(old) == block:
            del self.block_of[old]
        other = self.block_of.get(key)
        if other is not None:
            self.key_of.pop(other, None)
        self.block_of[key] = block
        self.key_of[block] = key

    def find(self, key) -> int | None:
        return self.block_of.get(key)

    def hold(self, block: int) -> None:
        if self.refs[block] == 0:
            self.free.remove(block)
        self.refs[block] += 1

    def drop(self, block: int) -> None:
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.free.append(block)
