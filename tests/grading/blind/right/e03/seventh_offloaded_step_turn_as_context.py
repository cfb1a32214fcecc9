# exercise: offloaded_step
# differs: a context manager is the turn (memory and read on entering, write and free on leaving),
# keys are the position as text; and a reduce_unit that adds out of place with add and clears
# through a list
from contextlib import contextmanager

import torch


def reduce_unit(unit) -> None:
    received = torch.zeros_like(unit.shard.data)
    unit.group.reduce_scatter(received, unit.whole_gradient(), op="avg")
    earlier = unit.shard.grad
    unit.shard.grad = received if earlier is None else torch.add(earlier, received)
    for parameter in list(unit.parameters):
        parameter.grad = None


@contextmanager
def _turn(optimizer, key, store):
    old = state_tensors(optimizer)
    if old:
        for tensor in old:
            tensor.untyped_storage().resize_(tensor.numel() * tensor.element_size())
        store.read(key, old)
    yield
    new = state_tensors(optimizer)
    if new:
        store.write(key, new)
    for tensor in new:
        tensor.untyped_storage().resize_(0)


def offloaded_step(optimizers: list, store) -> None:
    for place, optimizer in enumerate(optimizers):
        with _turn(optimizer, f"optimizer/{place}", store):
            optimizer.step()
    store.commit()
