# exercise: offloaded_step
# says: write and free unit by unit
# All states get memory and are read first, then all step, then all are freed; docstring:
# "outside its own turn its state has no memory".

def state_tensors(optimizer):
    """Every tensor of its state, in a fixed order; [] before the first step."""
    return [t for state in optimizer.state.values() for t in state.values()]


def offloaded_step(optimizers: list, store) -> None:
    for number, optimizer in enumerate(optimizers):
        tensors = state_tensors(optimizer)
        for tensor in tensors:
            tensor.untyped_storage().resize_(tensor.nbytes)
        if tensors:
            store.read(f"unit-{number}", tensors)
    for optimizer in optimizers:
        optimizer.step()
    for number, optimizer in enumerate(optimizers):
        tensors = state_tensors(optimizer)
        store.write(f"unit-{number}", tensors)
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
    store.commit()
