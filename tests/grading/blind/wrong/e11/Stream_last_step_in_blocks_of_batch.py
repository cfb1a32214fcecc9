# exercise: Stream
# says: smaller step evenly
# rank r takes the r-th block of `batch` rows of a step, so in the last, smaller step the first
# ranks get full shares and the others none (they differ by more than 1)

import numpy as np


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
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.rows)
        order = order.tolist()
        while self.consumed < self.rows:
            step = order[self.consumed : self.consumed + self.batch * self.ranks]
            self.consumed += len(step)
            yield step[self.rank * self.batch : (self.rank + 1) * self.batch]
        self.epoch, self.consumed = self.epoch + 1, 0

    def state(self) -> dict:
        return {"epoch": self.epoch, "consumed": self.consumed}

    def resume(self, state: dict) -> None:
        self.epoch, self.consumed = state["epoch"], state["consumed"]
