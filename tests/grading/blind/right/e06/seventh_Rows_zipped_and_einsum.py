# exercise: Rows
# differs: tables filled by itertools.zip_longest, scalings put on the gathered columns of B,
# batched products as einsum
import itertools

import torch


class Rows:
    def __init__(self, tables: list[list[int]], scalings: list[float]):
        columns = list(itertools.zip_longest(*tables, fillvalue=0))  # R times B
        self.pages = torch.tensor(columns, dtype=torch.long).reshape(-1, len(tables)).t()
        self.scalings = torch.tensor(scalings)[:, None, None]

    def added(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        count, longest = self.pages.shape
        flat = self.pages.reshape(-1).to(a.device)
        own_a = a.index_select(0, flat).view(count, longest, a.shape[1])
        own_b = b.index_select(0, flat).view(count, longest, b.shape[1])
        own_b = own_b * self.scalings.to(own_b)
        inside = torch.einsum("bti,bri->btr", x, own_a)
        return torch.einsum("btr,bro->bto", inside, own_b)
