# right: shuffled by random.Random of a string of (seed, epoch); each rank takes one block of a step, the blocks' sizes differ by at most 1; the state has names of its own
from random import Random


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

    def __iter__(self):
        order = list(range(self.rows))
        Random(f"{self.seed}/{self.epoch}").shuffle(order)
        while (left := self.rows - self.consumed) > 0:
            count = min(left, self.batch * self.ranks)
            start, stop = (count * r // self.ranks for r in (self.rank, self.rank + 1))
            mine = order[self.consumed + start : self.consumed + stop]
            self.consumed += count
            yield mine
        self.epoch += 1
        self.consumed = 0

    def state(self) -> dict:
        return {"round": self.epoch, "rows_given": self.consumed}

    def resume(self, state: dict) -> None:
        self.epoch = state["round"]
        self.consumed = state["rows_given"]
