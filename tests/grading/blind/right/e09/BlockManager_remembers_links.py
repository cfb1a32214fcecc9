# right: remembers the chain key of each block that it fills (forgotten when a block is taken), so that commit makes each digest once
from minitrain.inference.plain.digest import digest


class BlockManager:
    def __init__(self, pool, size: int):
        self.pool = pool
        self.size = size
        self.link = {}  # block -> key of its content, if full and computed

    def _fresh(self):
        block = self.pool.take()
        self.link.pop(block, None)
        return block

    def _next(self, link, tokens, index):
        return digest(link, list(tokens[index * self.size : (index + 1) * self.size]))

    def _blocks(self, count):
        return (count + self.size - 1) // self.size

    def admit(self, tokens: list[int], most: int, adapter=None):
        key, found = digest("first", adapter), {}
        while (len(found) + 1) * self.size < len(tokens):
            key = self._next(key, tokens, len(found))
            block = self.pool.find(key)
            if block is None:
                break
            found[block] = key
        known = len(found) * self.size
        new = self._blocks(min(len(tokens), known + most)) - len(found)
        woken = [block for block in found if not self.pool.refs[block]]
        if self.pool.available() - len(woken) < new:
            return None
        for block in found:
            self.pool.hold(block)
        self.link.update(found)
        return [*found, *(self._fresh() for _ in range(new))], known

    def grow(self, table: list[int], start: int, stop: int):
        if stop <= start:
            return []
        end = self._blocks(stop)
        places = [
            place
            for place in range(start // self.size, min(end, len(table)))
            if self.pool.refs[table[place]] >= 2
        ]
        missing = max(end - len(table), 0)
        if len(places) + missing > self.pool.available():
            return None
        copies = [(table[place], self._fresh()) for place in places]
        for place, (old, new) in zip(places, copies):
            table[place] = new
            self.pool.drop(old)
        table.extend(self._fresh() for _ in range(missing))
        return copies

    def commit(self, table: list[int], tokens: list[int], computed: int, adapter=None):
        link = digest("first", adapter)
        for index, block in enumerate(table[: computed // self.size]):
            if block not in self.link:
                self.link[block] = self._next(link, tokens, index)
            link = self.link[block]
            if self.pool.find(link) is None:
                self.pool.name(block, link)

    def fork(self, table: list[int]) -> list[int]:
        for block in table:
            self.pool.hold(block)
        return table[:]

    def release(self, table: list[int]) -> None:
        for block in reversed(table):
            self.pool.drop(block)
        del table[:]
