# exercise: offloaded_step
# says: under a key of its own
# the key is made of the unit's size, so units of equal size overwrite each other's state ("any
# key that is a unit's own").

import torch


def state_tensors(optimizer):
    """Every tensor of its state, in a fixed order; [] before the first step."""
    return [t for state in optimizer.state.values() for t in state.values()]


def offloaded_step(optimizers: list, store) -> None:
    for optimizer in optimizers:
        size = sum(p.numel() for g in optimizer.param_groups for p in g["params"])
        key = f"unit-of-{size}"
        tensors = state_tensors(optimizer)
        if tensors:
            for tensor in tensors:
                tensor.untyped_storage().resize_(tensor.nbytes)
            store.read(key, tensors)
        optimizer.step()
        tensors = state_tensors(optimizer)
        if tensors:
            store.write(key, tensors)
            for tensor in tensors:
                tensor.untyped_storage().resize_(0)
    store.commit()
