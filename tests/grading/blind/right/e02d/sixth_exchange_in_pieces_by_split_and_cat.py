# exercise: exchange
# no sort: the pieces that arrived are split, by (source, expert), put together expert by expert
# with cat, and the same split and cat take the answers back
import torch
from minitrain.parallel.collectives.differentiable import all_to_all


class Pieces:
    """The rows of a (sources, experts) table of counts, in either order."""

    def __init__(self, table):
        self.table = table

    @staticmethod
    def turned(rows, table):
        """Rows that stand by line of the table -> by column."""
        sizes = [n for line in table for n in line]
        pieces = rows.split(sizes)
        width = len(table[0])
        return torch.cat([piece for c in range(width) for piece in pieces[c::width]])

    def by_expert(self, rows):
        return self.turned(rows, self.table)

    def by_source(self, rows):
        return self.turned(rows, [list(column) for column in zip(*self.table)])


def exchange(group, experts, rows, counts):
    arriving = torch.empty_like(counts)
    arriving = group.all_to_all(arriving, counts.contiguous()).reshape(group.size, -1)
    out = [part.sum().item() for part in counts.chunk(group.size)]
    into = [line.sum().item() for line in arriving]
    pieces = Pieces(arriving.tolist())
    mine = pieces.by_expert(all_to_all(rows, group, out, into))
    answers = experts(mine, arriving.sum(0))
    return all_to_all(pieces.by_source(answers), group, into, out)
