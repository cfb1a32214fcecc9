# right: free blocks in two dictionaries, without a key (taken last in first out) and with one (in order of their leaving)
from collections import OrderedDict


class Pool:
    def __init__(self, num_blocks):
        self.refs = [0 for _ in range(num_blocks)]
        self._bare = {block: True for block in range(num_blocks)}
        self._kept = OrderedDict()
        self._keys = [None] * num_blocks
        self._where = {}
        self._has = [False] * num_blocks

    def _home(self, block):
        return self._kept if self._has[block] else self._bare

    def available(self):
        return len(self._bare) + len(self._kept)

    def take(self):
        if self._bare:
            block, _ = self._bare.popitem()
        elif self._kept:
            block, _ = self._kept.popitem(last=False)
            self._where.pop(self._keys[block])
            self._keys[block], self._has[block] = None, False
        else:
            return None
        self.refs[block] += 1
        return block

    def name(self, block, key):
        self._where[key] = block
        self._keys[block], self._has[block] = key, True

    def find(self, key):
        return self._where[key] if key in self._where else None

    def hold(self, block):
        if not self.refs[block]:
            self._home(block).pop(block)
        self.refs[block] += 1

    def drop(self, block):
        self.refs[block] -= 1
        if not self.refs[block]:
            self._home(block)[block] = True
