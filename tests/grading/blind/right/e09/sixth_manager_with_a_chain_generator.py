# right: a chain that begins with a digest of the adapter, as a generator; a list of keys by
# block; room is counted before anything is held
import itertools

from minitrain.inference.plain.digest import digest


class BlockManager:
    def __init__(self, pool, size: int):
        self.pool, self.size = pool, size
        self.key_of = [None] * len(pool.refs)

    def chain(self, tokens, blocks, adapter, table=()):
        """The keys of the first blocks; those that the table's blocks have are not made again."""
        parent = digest("root", adapter)
        for at, block in itertools.zip_longest(range(blocks), table[:blocks]):
            key = None if block is None else self.key_of[block]
            if key is None:
                key = digest(parent, tokens[at * self.size :][: self.size])
            yield key
            parent = key

    def new(self):
        block = self.pool.take()
        self.key_of[block] = None
        return block

    def admit(self, tokens: list[int], most: int, adapter=None):
        pairs = []
        for key in self.chain(tokens, (len(tokens) - 1) // self.size, adapter):
            if (block := self.pool.find(key)) is None:
                break
            pairs.append((block, key))
        known = self.size * len(pairs)
        places = min(len(tokens) - known, most)  # of a new block's beginning on
        fresh = (places + self.size - 1) // self.size
        asleep = [block for block, _ in pairs if not self.pool.refs[block]]
        if fresh > self.pool.available() - len(asleep):
            return None
        for block, key in pairs:
            self.pool.hold(block)
            self.key_of[block] = key
        return [block for block, _ in pairs] + [self.new() for _ in range(fresh)], known

    def grow(self, table: list[int], start: int, stop: int):
        touched = sorted({token // self.size for token in range(start, stop)})
        shared = [at for at in touched if at < len(table) and self.pool.refs[table[at]] > 1]
        lacking = (touched[-1] + 1 - len(table)) if touched else 0
        lacking = max(lacking, 0)
        if self.pool.available() < len(shared) + lacking:
            return None
        table.extend([self.new() for _ in range(lacking)])
        copies = [(table[at], self.new()) for at in shared]
        for at, (old, new) in zip(shared, copies):
            table[at] = new
            self.pool.drop(old)
        return copies

    def commit(self, table: list[int], tokens: list[int], computed: int, adapter=None):
        full = computed // self.size
        for block, key in zip(table, self.chain(tokens, full, adapter, table)):
            self.key_of[block] = key
            if self.pool.find(key) is None:
                self.pool.name(block, key)

    def fork(self, table: list[int]) -> list[int]:
        second = table.copy()
        for block in second:
            self.pool.hold(block)
        return second

    def release(self, table: list[int]) -> None:
        while table:
            self.pool.drop(table.pop())
