# a reader's answer to `offloaded_step`, in which others made the mistakes of wrong/e03/offloaded_step_other_reader.diff

import torch

if "state_tensors" not in globals():  # given in the notebook

    def state_tensors(optimizer):
        return [t for state in optimizer.state.values() for t in state.values()]


def offloaded_step(optimizers: list, store) -> None:
    for number, optimizer in enumerate(optimizers):
        tensors = state_tensors(optimizer)
        for tensor in tensors:
            tensor.untyped_storage().resize_(tensor.nbytes)
        if tensors:
            store.read(f"unit-{number}", tensors)
        optimizer.step()
        tensors = state_tensors(optimizer)
        store.write(f"unit-{number}", tensors)
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
    store.commit()
