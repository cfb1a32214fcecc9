# exercise: offloaded_step
# says: read, step, write and free unit by unit


def offloaded_step(optimizers, store):
    for number, optimizer in enumerate(optimizers):
        tensors = state_tensors(optimizer)
        for tensor in tensors:
            tensor.untyped_storage().resize_(tensor.nbytes)
        if tensors:
            store.read(f"unit-{number}", tensors)
    for optimizer in optimizers:
        optimizer.step()
    for number, optimizer in enumerate(optimizers):
        store.write(f"unit-{number}", state_tensors(optimizer))
        for tensor in state_tensors(optimizer):
            tensor.untyped_storage().resize_(0)
    store.commit()


def state_tensors(optimizer):
    return [t for state in optimizer.state.values() for t in state.values()]
