# exercise: offloaded_step
# says: without memory | has no memory


def offloaded_step(optimizers, store):
    for number, optimizer in enumerate(optimizers):
        tensors = state_tensors(optimizer)

        if tensors:
            store.read(f"unit-{number}", tensors)
        optimizer.step()
        tensors = state_tensors(optimizer)
        store.write(f"unit-{number}", tensors)
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
    store.commit()


def state_tensors(optimizer):
    return [t for state in optimizer.state.values() for t in state.values()]
