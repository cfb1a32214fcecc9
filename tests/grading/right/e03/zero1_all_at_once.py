import torch


class Zero1:
    """One message for all units: their parts lie side by side, rank by rank."""

    def __init__(self, units, make):
        self.units, self.group = list(units), units[0].group
        self.inner = make([u.shard for u in self.units])

    def step(self):
        ranks = self.group.size
        lengths = [u.shard.numel() for u in self.units]
        rows = torch.cat([u.whole_gradient().view(ranks, -1) for u in self.units], dim=1)
        mine = torch.empty(sum(lengths), dtype=rows.dtype)
        self.group.reduce_scatter(mine, rows.flatten(), op="sum")
        for u, part in zip(self.units, (mine / ranks).split(lengths)):
            u.shard.grad = part.clone()
        self.inner.step()
        self.inner.zero_grad()
        own = torch.cat([u.shard.data for u in self.units])
        everyone = torch.empty(ranks, sum(lengths), dtype=own.dtype)
        self.group.all_gather(everyone, own)
        for u, columns in zip(self.units, everyone.split(lengths, dim=1)):
            u.full.copy_(columns.flatten())
            for p in u.parameters:
                p.grad = None
