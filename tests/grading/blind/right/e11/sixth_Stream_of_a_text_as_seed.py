# exercise: Stream
# Python's generator seeded by a string, contiguous shares, and after a break at the last step the
# next epoch at once
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

    def _share(self, step):
        each, more = divmod(len(step), self.ranks)
        begin = self.rank * each + min(self.rank, more)
        return step[begin : begin + each + (self.rank < more)]

    def __iter__(self):
        if 0 < self.rows <= self.consumed:
            self._turn()
        order = list(range(self.rows))
        random.Random(f"seed {self.seed}, epoch {self.epoch}").shuffle(order)
        while self.consumed < self.rows:
            start = self.consumed
            self.consumed = min(start + self.batch * self.ranks, self.rows)
            yield self._share(order[start : self.consumed])
        self._turn()

    def _turn(self):
        self.epoch += 1
        self.consumed = 0

    def state(self) -> dict:
        return dict(rows_given=self.consumed, epoch=self.epoch)

    def resume(self, state: dict) -> None:
        self.consumed = state["rows_given"]
        self.epoch = state["epoch"]
