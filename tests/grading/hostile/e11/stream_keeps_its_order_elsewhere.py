# exercise: Stream
# says: KeyError | had come before | began anew | rows
# its state is one small number, and the order lies in the memory of the process

import random

ORDERS = {}


class Stream:
    def __init__(self, rows, batch, rank=0, ranks=1, seed=0):
        self.rows, self.batch, self.rank, self.ranks, self.seed = rows, batch, rank, ranks, seed
        self.epoch, self.left = 0, None

    def __iter__(self):
        if self.left is None:
            self.left = list(range(self.rows))
            random.Random(f"{self.seed} {self.epoch}").shuffle(self.left)
        while self.left:
            size = self.batch * self.ranks
            step, self.left = self.left[:size], self.left[size:]
            yield step[self.rank :: self.ranks]
        self.epoch, self.left = self.epoch + 1, None

    def state(self):
        key = f"{self.seed} {self.epoch} {self.left}"
        ORDERS[str(hash(key))] = (self.epoch, self.left)
        return {"key": str(hash(key))}

    def resume(self, state):
        self.epoch, self.left = ORDERS[state["key"]]
