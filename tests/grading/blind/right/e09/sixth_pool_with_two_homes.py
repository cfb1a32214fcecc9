# right: two homes for free blocks, a set for those without a key (taken in no order that anyone
# promised) and an OrderedDict for the others; one record a block
from collections import OrderedDict

NOTHING = object()


class Pool:
    def __init__(self, num_blocks: int):
        self.refs = [0 for _ in range(num_blocks)]
        self.keys = [NOTHING] * num_blocks
        self.where = {}
        self.blank = set(range(num_blocks))
        self.asleep = OrderedDict()

    def available(self) -> int:
        return len(self.blank) + len(self.asleep)

    def take(self) -> int | None:
        if self.blank:
            block = self.blank.pop()
        elif self.asleep:
            block, key = self.asleep.popitem(last=False)
            self.where.pop(key)
            self.keys[block] = NOTHING
        else:
            return None
        self.refs[block] += 1
        return block

    def name(self, block: int, key) -> None:
        self.keys[block] = key
        self.where[key] = block

    def find(self, key) -> int | None:
        return self.where.get(key)

    def hold(self, block: int) -> None:
        self.refs[block] += 1
        if self.refs[block] > 1:
            return
        if self.keys[block] is NOTHING:
            self.blank.remove(block)
        else:
            del self.asleep[block]

    def drop(self, block: int) -> None:
        self.refs[block] -= 1
        if self.refs[block]:
            return
        if self.keys[block] is NOTHING:
            self.blank.add(block)
        else:
            self.asleep[block] = self.keys[block]
