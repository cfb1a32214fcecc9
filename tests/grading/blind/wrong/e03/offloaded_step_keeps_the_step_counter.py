# exercise: offloaded_step
# says: AdamW's step counters
# moves only tensors with dimensions and leaves AdamW's 0-d step counter in memory and out of
# the store ("Every tensor of its state"; "outside its own turn its state has no memory")

import torch

if "state_tensors" not in globals():  # given in the notebook

    def state_tensors(optimizer):
        return [t for state in optimizer.state.values() for t in state.values()]


def offloaded_step(optimizers: list, store) -> None:
    def large(optimizer):
        return [t for t in state_tensors(optimizer) if t.dim() > 0]

    for number, optimizer in enumerate(optimizers):
        tensors = large(optimizer)
        for tensor in tensors:
            tensor.untyped_storage().resize_(tensor.nbytes)
        if tensors:
            store.read(f"unit-{number}", tensors)
        optimizer.step()
        tensors = large(optimizer)
        store.write(f"unit-{number}", tensors)
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
    store.commit()
