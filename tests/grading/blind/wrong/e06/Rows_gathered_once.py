# exercise: Rows
# says: those are the first layer's pages
# gathers the pages at the first call and keeps them: a second layer is answered with the pages
# of the first

import torch


class Rows:
    def __init__(self, tables, scalings):
        longest = max((len(table) for table in tables), default=0)
        filled = [table + [0] * (longest - len(table)) for table in tables]
        self.pages = torch.tensor(filled, dtype=torch.long).view(len(tables), longest)
        self.scalings = torch.tensor(scalings)
        self.own = None

    def added(self, x, a, b):
        if self.own is None:
            self.own = a[self.pages], b[self.pages]
        own_a, own_b = self.own
        inside = torch.bmm(x, own_a.transpose(1, 2)) * self.scalings[:, None, None]
        return torch.bmm(inside, own_b)
