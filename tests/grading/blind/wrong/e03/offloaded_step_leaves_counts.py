# exercise: offloaded_step
# says: AdamW's step counters
# State tensors without dimensions (AdamW's step counts) are neither offloaded nor freed;
# docstring: "outside its own turn its state has no memory", and the state is "every tensor" of
# `state_tensors`.

def state_tensors(optimizer):
    """Every tensor of its state, in a fixed order; [] before the first step."""
    return [t for state in optimizer.state.values() for t in state.values()]


def offloaded_step(optimizers: list, store) -> None:
    for number, optimizer in enumerate(optimizers):
        key = f"unit-{number}"
        tensors = [t for t in state_tensors(optimizer) if t.dim() > 0]
        for tensor in tensors:
            tensor.untyped_storage().resize_(tensor.nbytes)
        if tensors:
            store.read(key, tensors)
        optimizer.step()
        tensors = [t for t in state_tensors(optimizer) if t.dim() > 0]
        store.write(key, tensors)
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
    store.commit()
