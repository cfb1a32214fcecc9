# exercise: BlockManager
# differs: all keys of a prompt at once by accumulate and takewhile; commit goes back to the last
# block with a key; new blocks are taken first and then put in. The Pool has two orders, of blocks
# with and without a key
from collections import OrderedDict
from itertools import accumulate, takewhile

from minitrain.inference.plain.digest import digest


class Pool:
    def __init__(self, num_blocks):
        self.refs = [0] * num_blocks
        self.keys = [None] * num_blocks
        self.blank = dict.fromkeys(range(num_blocks))  # free, without a key
        self.known = OrderedDict()  # free, with a key: the longest free first
        self.at = {}

    def available(self):
        return len(self.blank) + len(self.known)

    def take(self):
        if self.blank:
            block = self.blank.popitem()[0]
        elif self.known:
            block = self.known.popitem(last=False)[0]
            del self.at[self.keys[block][0]]
            self.keys[block] = None
        else:
            return None
        self.refs[block] = 1
        return block

    def name(self, block, key):
        self.at[key] = block
        self.keys[block] = (key,)

    def find(self, key):
        return self.at.get(key)

    def hold(self, block):
        # a free block without a key cannot be found, yet somebody may hold it
        if not self.refs[block]:
            if self.keys[block] is None:
                del self.blank[block]
            else:
                self.known.pop(block)
        self.refs[block] += 1

    def drop(self, block):
        self.refs[block] -= 1
        if self.refs[block] == 0:
            if self.keys[block] is None:
                self.blank[block] = None
            else:
                self.known[block] = True


class BlockManager:
    def __init__(self, pool, size):
        self.pool, self.size = pool, size
        self.links = [None] * len(pool.refs)

    def _cut(self, tokens, first, last):
        b = self.size
        return (tokens[i * b : i * b + b] for i in range(first, last))

    def _fresh(self, count):
        blocks = [self.pool.take() for _ in range(count)]
        for block in blocks:
            self.links[block] = None
        return blocks

    def admit(self, tokens, most, adapter=None):
        whole = max(0, len(tokens) - 1) // self.size
        keys = [*accumulate([adapter, *self._cut(tokens, 0, whole)], digest)][1:]
        table = [*takewhile(lambda b: b is not None, map(self.pool.find, keys))]
        known = len(table) * self.size
        stop = min(known + most, len(tokens))
        missing = (stop - known + self.size - 1) // self.size
        idle = [b for b in table if not self.pool.refs[b]]
        if missing + len(idle) > self.pool.available():
            return None
        for block, key in zip(table, keys):
            self.pool.hold(block)
            self.links[block] = key
        table.extend(self._fresh(missing))
        return table, known

    def grow(self, table, start, stop):
        if stop <= start:
            return []
        end = (stop - 1) // self.size + 1
        swap = [
            (i, block)
            for i, block in enumerate(table[:end])
            if i >= start // self.size and self.pool.refs[block] >= 2
        ]
        more = max(end - len(table), 0)
        if len(swap) + more > self.pool.available():
            return None
        fresh = self._fresh(len(swap) + more)
        copies = []
        for (i, old), new in zip(swap, fresh):
            table[i] = new
            copies.append((old, new))
            self.pool.drop(old)
        table.extend(fresh[len(swap) :])
        return copies

    def commit(self, table, tokens, computed, adapter=None):
        full = computed // self.size
        first = full
        while first and self.links[table[first - 1]] is None:
            first -= 1
        key = self.links[table[first - 1]] if first else adapter
        for block, part in zip(table[first:full], self._cut(tokens, first, full)):
            key = self.links[block] = digest(key, part)
            if self.pool.find(key) is None:
                self.pool.name(block, key)

    def fork(self, table):
        for block in table:
            self.pool.hold(block)
        return table[:]

    def release(self, table):
        for block in reversed(table):
            self.pool.drop(block)
        del table[:]
