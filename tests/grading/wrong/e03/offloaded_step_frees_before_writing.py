# exercise: offloaded_step
# says: freed before it was written


def offloaded_step(optimizers, store):
    for number, optimizer in enumerate(optimizers):
        tensors = state_tensors(optimizer)
        for tensor in tensors:
            tensor.untyped_storage().resize_(tensor.nbytes)
        if tensors:
            store.read(f"unit-{number}", tensors)
        optimizer.step()
        tensors = state_tensors(optimizer)
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
        store.write(f"unit-{number}", tensors)
    store.commit()


def state_tensors(optimizer):
    return [t for state in optimizer.state.values() for t in state.values()]
