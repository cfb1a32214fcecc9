# right: another generator (torch), the ranks get blocks that lie side by side, and the state turns to the next epoch with the last step
import torch


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
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + self.epoch)
        order = torch.randperm(self.rows, generator=generator)
        steps = order[self.consumed :].split(self.batch * self.ranks)
        for step in steps:
            self.consumed += len(step)
            if self.consumed == self.rows:
                self.epoch, self.consumed = self.epoch + 1, 0
            yield step.tensor_split(self.ranks)[self.rank].tolist()

    def state(self) -> dict:
        return {"epoch": self.epoch, "consumed": self.consumed}

    def resume(self, state: dict) -> None:
        self.epoch, self.consumed = state["epoch"], state["consumed"]
