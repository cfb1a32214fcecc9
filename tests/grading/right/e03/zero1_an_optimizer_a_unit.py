class Zero1:
    """Last unit first, each with an optimizer of its own, from its reduce to its gather."""

    def __init__(self, units, make):
        self.pairs = [(unit, make([unit.shard])) for unit in reversed(units)]

    def step(self):
        for unit, optimizer in self.pairs:
            part = unit.shard.data.new_zeros(unit.shard.shape)
            unit.group.reduce_scatter(part, unit.whole_gradient())
            unit.shard.grad = part / unit.group.size
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            unit.group.all_gather(unit.full, unit.shard.data.clone())
            unit.module.zero_grad(set_to_none=True)
