# exercise: Rows
# says: all rows have the first one's adapter

import torch


class Rows:
    """Every row gets the first adapter."""

    def __init__(self, tables, scalings):
        self.table, self.s = tables[0], scalings[0]

    def added(self, x, a, b):
        return self.s * (x @ a[self.table].T) @ b[self.table]
