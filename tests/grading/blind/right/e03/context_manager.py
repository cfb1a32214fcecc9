# right: offloaded_step by a context manager that holds a unit's state in memory; other keys; nothing written where there is no state
from contextlib import contextmanager

import torch

if "state_tensors" not in globals():  # given in the notebook

    def state_tensors(optimizer):
        return [t for state in optimizer.state.values() for t in state.values()]


@contextmanager
def _in_memory(optimizer, key, store):
    before = state_tensors(optimizer)
    for tensor in before:
        tensor.untyped_storage().resize_(tensor.nbytes)
    if before:
        store.read(key, before)
    yield
    after = state_tensors(optimizer)  # the first step has made it
    if after:
        store.write(key, after)
    for tensor in after:
        tensor.untyped_storage().resize_(0)


def offloaded_step(optimizers: list, store) -> None:
    for number in range(len(optimizers)):
        with _in_memory(optimizers[number], f"state-of-{number}", store):
            optimizers[number].step()
    store.commit()
