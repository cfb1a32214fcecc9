# exercise: Stream
# differs: another generator, shares dealt out in contiguous blocks, and a state that is one
# running count of rows ever given
import random


class Stream:
    def __init__(self, rows, batch, rank=0, ranks=1, seed=0):
        self.rows, self.batch, self.rank, self.ranks, self.seed = (
            rows,
            batch,
            rank,
            ranks,
            seed,
        )
        self.epoch = self.consumed = 0

    def _order(self):
        order = list(range(self.rows))
        random.Random(f"{self.seed} and {self.epoch}").shuffle(order)
        return order

    def __iter__(self):
        order = self._order()
        wide = self.batch * self.ranks
        while self.consumed < self.rows:
            step = order[self.consumed : self.consumed + wide]
            small, more = divmod(len(step), self.ranks)
            start = self.rank * small + min(self.rank, more)
            stop = start + small + (self.rank < more)
            self.consumed += len(step)
            yield step[start:stop]
        self.epoch, self.consumed = self.epoch + 1, 0

    def state(self) -> dict:
        return {"given": self.epoch * self.rows + self.consumed}

    def resume(self, state: dict) -> None:
        self.epoch, self.consumed = divmod(state["given"], self.rows)
