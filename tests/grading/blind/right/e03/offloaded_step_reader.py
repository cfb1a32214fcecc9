# a reader's answer to `offloaded_step`, in which others made the mistakes of wrong/e03/offloaded_step_reader.diff

def state_tensors(optimizer):
    """Every tensor of its state, in a fixed order; [] before the first step."""
    return [t for state in optimizer.state.values() for t in state.values()]


def offloaded_step(optimizers: list, store) -> None:
    for number, optimizer in enumerate(optimizers):
        key = f"unit-{number}"
        tensors = state_tensors(optimizer)
        for tensor in tensors:
            tensor.untyped_storage().resize_(tensor.nbytes)
        if tensors:
            store.read(key, tensors)
        optimizer.step()
        tensors = state_tensors(optimizer)
        store.write(key, tensors)
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
    store.commit()
