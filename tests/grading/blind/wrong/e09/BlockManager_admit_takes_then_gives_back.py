# exercise: BlockManager
# says: blocks are missing and it gave None
# admit takes first and gives back where blocks are missing; the taken ones have lost their keys
# by then, so something has changed

from minitrain.inference.plain.digest import digest


class BlockManager:
    def __init__(self, pool, size: int):
        self.pool, self.size = pool, size

    def _keys(self, tokens, blocks, adapter):
        key = digest("adapter", adapter)
        for i in range(blocks):
            key = digest(key, tokens[i * self.size : (i + 1) * self.size])
            yield key

    def admit(self, tokens: list[int], most: int, adapter=None):
        table = []
        for key in self._keys(tokens, (len(tokens) - 1) // self.size, adapter):
            block = self.pool.find(key)
            if block is None:
                break
            table.append(block)
        known = len(table) * self.size
        wanted = -(-min(len(tokens), known + most) // self.size) - len(table)
        for block in table:
            self.pool.hold(block)
        for _ in range(wanted):
            block = self.pool.take()
            if block is None:
                self.release(table)
                return None
            table.append(block)
        return table, known

    def grow(self, table: list[int], start: int, stop: int):
        last = -(-stop // self.size)
        more = max(0, last - len(table))
        shared = [
            i
            for i in range(start // self.size, min(last, len(table)))
            if self.pool.refs[table[i]] > 1
        ]
        if more + len(shared) > self.pool.available():
            return None
        copies = []
        for i in shared:
            old, table[i] = table[i], self.pool.take()
            self.pool.drop(old)
            copies.append((old, table[i]))
        table += [self.pool.take() for _ in range(more)]
        return copies

    def commit(self, table: list[int], tokens: list[int], computed: int, adapter=None):
        keys = self._keys(tokens, computed // self.size, adapter)
        for block, key in zip(table, keys):
            if self.pool.find(key) is None:
                self.pool.name(block, key)

    def fork(self, table: list[int]) -> list[int]:
        for block in table:
            self.pool.hold(block)
        return list(table)

    def release(self, table: list[int]) -> None:
        while table:
            self.pool.drop(table.pop())
