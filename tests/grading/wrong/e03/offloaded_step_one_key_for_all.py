# exercise: offloaded_step
# says: holds another unit's tensors


def offloaded_step(optimizers, store):
    for number, optimizer in enumerate(optimizers):
        tensors = state_tensors(optimizer)
        for tensor in tensors:
            tensor.untyped_storage().resize_(tensor.nbytes)
        if tensors:
            store.read("state", tensors)
        optimizer.step()
        tensors = state_tensors(optimizer)
        store.write("state", tensors)
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
    store.commit()


def state_tensors(optimizer):
    return [t for state in optimizer.state.values() for t in state.values()]
