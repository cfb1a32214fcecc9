# right: tiled_forward keeps its running softmax in a class and reads the tiles of keys from the last to the first, joining the tiles at the end; tiled_backward goes over one list of pairs of tiles, sorted by keys, with unscaled queries
import torch

from minitrain.model.attention.mask import Mask

ROWS = 128  # of a tile
COLUMNS = 128


def tiles(places, size):
    """range(0, 300), 128 -> slices 0:128, 128:256, 256:300"""
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


class RunningSoftmax:
    """One tile of queries: the greatest score, the sum of exp, the weighted values."""

    def __init__(self, queries, width):
        self.queries = queries
        shape = queries.shape[:-1]
        self.top = queries.new_full(shape, float("-inf"))
        self.mass = queries.new_zeros(shape)
        self.total = queries.new_zeros((*shape, width))

    def read(self, keys, values, readable):
        scores = torch.einsum("bhic,bhjc->bhij", self.queries, keys)
        if readable is not None:
            scores = torch.where(readable, scores, float("-inf"))
        new = torch.maximum(self.top, scores.max(dim=-1).values)
        # a row that could read nothing so far: subtract 0, all its weights are 0
        base = torch.where(new == float("-inf"), torch.zeros_like(new), new)
        weights = torch.exp(scores - base.unsqueeze(-1))
        shrink = torch.exp(self.top - base)
        self.mass = self.mass * shrink + weights.sum(dim=-1)
        self.total = self.total * shrink.unsqueeze(-1)
        self.total = self.total + torch.einsum("bhij,bhjc->bhic", weights, values)
        self.top = new

    def result(self):
        return self.total / self.mass.unsqueeze(-1), self.top + torch.log(self.mass)


def tiled_forward(q, k, v, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    outs, sums = [], []
    for rows in tiles(range(q.shape[2]), ROWS):
        running = RunningSoftmax(q[:, :, rows] * q.shape[3] ** -0.5, v.shape[3])
        for columns in [*tiles(mask.keys(rows, k.shape[2]), COLUMNS)][::-1]:
            readable = mask.tile(rows, columns, q.device)
            running.read(k[:, :, columns], v[:, :, columns], readable)
        out, lse = running.result()
        outs.append(out)
        sums.append(lse)
    return torch.cat(outs, dim=2), torch.cat(sums, dim=2)


def tiled_backward(q, k, v, d_out, lse, delta, mask: Mask) -> tuple[torch.Tensor, ...]:
    factor = q.shape[3] ** -0.5
    dq, dk, dv = (torch.zeros_like(z) for z in (q, k, v))
    pairs = [
        (rows, columns)
        for rows in tiles(range(q.shape[2]), ROWS)
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS)
    ]
    for i, j in sorted(pairs, key=lambda pair: (pair[1].start, pair[0].start)):
        queries, keys, values, given = q[:, :, i], k[:, :, j], v[:, :, j], d_out[:, :, i]
        exponent = torch.einsum("bhic,bhjc->bhij", queries, keys) * factor
        weights = torch.exp(exponent - lse[:, :, i].unsqueeze(-1))
        readable = mask.tile(i, j, q.device)
        if readable is not None:
            weights = torch.where(readable, weights, 0.0)
        dv[:, :, j] += torch.einsum("bhij,bhic->bhjc", weights, given)
        d_weights = torch.einsum("bhic,bhjc->bhij", given, values)
        d_scores = weights * (d_weights - delta[:, :, i].unsqueeze(-1)) * factor
        dq[:, :, i] += torch.einsum("bhij,bhjc->bhic", d_scores, keys)
        dk[:, :, j] += torch.einsum("bhij,bhic->bhjc", d_scores, queries)
    return dq, dk, dv
