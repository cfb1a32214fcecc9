# exercise: offloaded_step
# says: wrote nothing to the store
# The state that the very first step makes is neither written nor freed until the second call;
# docstring: "outside its own turn its state has no memory".

def state_tensors(optimizer):
    """Every tensor of its state, in a fixed order; [] before the first step."""
    return [t for state in optimizer.state.values() for t in state.values()]


def offloaded_step(optimizers: list, store) -> None:
    for number, optimizer in enumerate(optimizers):
        key = f"unit-{number}"
        tensors = state_tensors(optimizer)
        if tensors and tensors[0].untyped_storage().nbytes() == 0:
            for tensor in tensors:
                tensor.untyped_storage().resize_(tensor.nbytes)
            store.read(key, tensors)
        optimizer.step()
        if tensors:
            store.write(key, tensors)
            for tensor in tensors:
                tensor.untyped_storage().resize_(0)
    store.commit()
