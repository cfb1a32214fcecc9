# exercise: Rows
# says: all rows have the first one's scaling
# uses the first row's scaling for all rows

import torch


class Rows:
    def __init__(self, tables, scalings):
        longest = max((len(table) for table in tables), default=0)
        filled = [table + [0] * (longest - len(table)) for table in tables]
        self.pages = torch.tensor(filled, dtype=torch.long).view(len(tables), longest)
        self.scalings = scalings[0] if scalings else 1.0

    def added(self, x, a, b):
        inside = torch.bmm(x, a[self.pages].transpose(1, 2))
        return torch.bmm(inside * self.scalings, b[self.pages])
