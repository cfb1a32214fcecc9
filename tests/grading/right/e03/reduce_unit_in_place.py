def reduce_unit(unit):
    group, whole = unit.group, unit.whole_gradient()
    received = whole.new_empty(unit.length)
    group.reduce_scatter(received, whole)
    received /= group.size
    if unit.shard.grad is None:
        unit.shard.grad = received
    else:
        unit.shard.grad += received
    unit.module.zero_grad(set_to_none=True)
