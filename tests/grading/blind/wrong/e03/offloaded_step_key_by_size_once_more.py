# exercise: offloaded_step
# says: under a key of its own
# the key is the number of elements, so units of equal size overwrite each other's state ("Take
# any key that is a unit's own")

import torch

if "state_tensors" not in globals():  # given in the notebook

    def state_tensors(optimizer):
        return [t for state in optimizer.state.values() for t in state.values()]


def offloaded_step(optimizers: list, store) -> None:
    for optimizer in optimizers:
        tensors = state_tensors(optimizer)
        for tensor in tensors:
            tensor.untyped_storage().resize_(tensor.nbytes)
        if tensors:
            store.read(f"state-{sum(t.numel() for t in tensors)}", tensors)
        optimizer.step()
        tensors = state_tensors(optimizer)
        store.write(f"state-{sum(t.numel() for t in tensors)}", tensors)
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
    store.commit()
