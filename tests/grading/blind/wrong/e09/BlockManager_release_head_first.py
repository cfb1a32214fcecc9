# exercise: BlockManager
# says: the tail first, for nothing finds
# release drops the blocks from the first to the last, so the head of a text is evicted before
# its tail

from minitrain.inference.plain.digest import digest


class BlockManager:
    def __init__(self, pool, size: int):
        self.pool, self.size = pool, size

    def chain(self, tokens, blocks, adapter):
        key = digest(adapter)
        for i in range(blocks):
            key = digest(key, tokens[i * self.size : (i + 1) * self.size])
            yield key

    def admit(self, tokens: list[int], most: int, adapter=None):
        table = []
        for key in self.chain(tokens, (len(tokens) - 1) // self.size, adapter):
            block = self.pool.find(key)
            if block is None:
                break
            table.append(block)
        known = len(table) * self.size
        stop = min(len(tokens), known + most)
        new = -(-stop // self.size) - len(table)
        free = sum(self.pool.refs[block] == 0 for block in table)
        if self.pool.available() - free < new:
            return None
        for block in table:
            self.pool.hold(block)
        table += [self.pool.take() for _ in range(new)]
        return table, known

    def grow(self, table: list[int], start: int, stop: int):
        if stop <= start:
            return []
        last = -(-stop // self.size)
        new = max(0, last - len(table))
        shared = [
            i
            for i in range(start // self.size, min(last, len(table)))
            if self.pool.refs[table[i]] > 1
        ]
        if self.pool.available() < new + len(shared):
            return None
        copies = []
        for i in shared:
            old, table[i] = table[i], self.pool.take()
            self.pool.drop(old)
            copies.append((old, table[i]))
        table += [self.pool.take() for _ in range(new)]
        return copies

    def commit(self, table: list[int], tokens: list[int], computed: int, adapter=None):
        for block, key in zip(table, self.chain(tokens, computed // self.size, adapter)):
            if self.pool.find(key) is None:
                self.pool.name(block, key)

    def fork(self, table: list[int]) -> list[int]:
        for block in table:
            self.pool.hold(block)
        return list(table)

    def release(self, table: list[int]) -> None:
        for block in table:
            self.pool.drop(block)
        table.clear()
