# exercise: BlockManager
# says: and cannot be found
# commit names only the one block that `computed` has just filled; after a prompt of several
# blocks, or a chunk that ends within a block, the others are never found

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
        asleep = sum(self.pool.refs[block] == 0 for block in table)
        if wanted + asleep > self.pool.available():
            return None
        for block in table:
            self.pool.hold(block)
        table += [self.pool.take() for _ in range(wanted)]
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
        if computed % self.size or not computed:
            return
        at = computed // self.size - 1
        *_, key = self._keys(tokens, at + 1, adapter)
        if self.pool.find(key) is None:
            self.pool.name(table[at], key)

    def fork(self, table: list[int]) -> list[int]:
        for block in table:
            self.pool.hold(block)
        return list(table)

    def release(self, table: list[int]) -> None:
        while table:
            self.pool.drop(table.pop())
