# exercise: Rows
# says: in which no row has an adapter
# if no row has an adapter, torch.tensor([[], []]) is float32 and is no index

import torch


class Rows:
    def __init__(self, tables: list[list[int]], scalings: list[float]):
        longest = max(len(table) for table in tables)
        self.tables = torch.tensor(
            [table + [0] * (longest - len(table)) for table in tables]
        )
        self.scalings = torch.tensor(scalings)

    def added(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        low = torch.bmm(x, a[self.tables].mT)
        return torch.bmm(low, b[self.tables]) * self.scalings[:, None, None]
