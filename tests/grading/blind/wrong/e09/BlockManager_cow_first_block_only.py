# exercise: BlockManager
# says: the writer gets a block of its own
# grow exchanges only the shared block that `start` falls into, not those of the tokens behind
# it

from minitrain.inference.plain.digest import digest


class BlockManager:
    def __init__(self, pool, size: int):
        self.pool, self.size = pool, size

    def _chain(self, tokens, count, adapter):
        key = digest("adapter", adapter)
        for at in range(count):
            key = digest(key, list(tokens[at * self.size : (at + 1) * self.size]))
            yield at, key

    def admit(self, tokens: list[int], most: int, adapter=None):
        pool, size = self.pool, self.size
        known = []
        for _, key in self._chain(tokens, (len(tokens) - 1) // size, adapter):
            block = pool.find(key)
            if block is None:
                break
            known.append(block)
        start = len(known) * size
        missing = -(-min(len(tokens), start + most) // size) - len(known)
        sleeping = sum(pool.refs[block] == 0 for block in known)
        if missing + sleeping > pool.available():
            return None
        for block in known:
            pool.hold(block)
        return known + [pool.take() for _ in range(missing)], start

    def grow(self, table: list[int], start: int, stop: int):
        pool, size = self.pool, self.size
        if stop <= start:
            return []
        end = -(-stop // size)
        at = start // size
        shared = [at] if at < len(table) and pool.refs[table[at]] > 1 else []
        missing = max(0, end - len(table))
        if missing + len(shared) > pool.available():
            return None
        copies = []
        for at in shared:
            new = pool.take()
            copies.append((table[at], new))
            pool.drop(table[at])
            table[at] = new
        table.extend(pool.take() for _ in range(missing))
        return copies

    def commit(self, table: list[int], tokens: list[int], computed: int, adapter=None):
        for at, key in self._chain(tokens, computed // self.size, adapter):
            if self.pool.find(key) is None:
                self.pool.name(table[at], key)

    def fork(self, table: list[int]) -> list[int]:
        for block in table:
            self.pool.hold(block)
        return list(table)

    def release(self, table: list[int]) -> None:
        while table:
            self.pool.drop(table.pop())
