# exercise: offloaded_step
# says: of two units under one key
# The key is made of the shard's size, so two units of one size overwrite each other's state;
# "Take any key that is a unit's own".

def state_tensors(optimizer):
    """Every tensor of its state, in a fixed order; [] before the first step."""
    return [t for state in optimizer.state.values() for t in state.values()]


def offloaded_step(optimizers: list, store) -> None:
    for optimizer in optimizers:
        size = sum(p.numel() for p in optimizer.param_groups[0]["params"])
        key = f"unit-of-{size}"
        tensors = state_tensors(optimizer)
        for tensor in tensors:
            tensor.untyped_storage().resize_(tensor.nbytes)
        if tensors:
            store.read(key, tensors)
        optimizer.step()
        tensors = state_tensors(optimizer)
        store.write(key, tensors)
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
    store.commit()
