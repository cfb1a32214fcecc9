# exercise: Rows
# says: and belongs to somebody
# fills short tables up with -1: that is the last page, so rows without adapter get somebody
# else's

import torch


class Rows:
    def __init__(self, tables, scalings):
        longest = max((len(table) for table in tables), default=0)
        filled = [table + [-1] * (longest - len(table)) for table in tables]
        self.pages = torch.tensor(filled, dtype=torch.long).view(len(tables), longest)
        self.scalings = torch.tensor(scalings)

    def added(self, x, a, b):
        inside = torch.bmm(x, a[self.pages].transpose(1, 2))
        return torch.bmm(inside * self.scalings[:, None, None], b[self.pages])
