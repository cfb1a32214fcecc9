# exercise: BlockManager
# says: cannot be found | tables and its count is
# writes the pool's counts itself, and never holds or drops


class BlockManager:
    def __init__(self, pool, size):
        self.pool, self.size, self.next = pool, size, 0

    def admit(self, tokens, most, adapter=None):
        table = []
        self.grow(table, 0, min(len(tokens), most))
        return table, 0

    def grow(self, table, start, stop):
        while len(table) * self.size < stop:
            table.append(self.next % len(self.pool.refs))
            self.next += 1
            self.pool.refs[table[-1]] = 1
        return []

    def commit(self, table, tokens, computed, adapter=None):
        pass

    def fork(self, table):
        return list(table)

    def release(self, table):
        table.clear()
