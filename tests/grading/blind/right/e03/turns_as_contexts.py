# right: offloaded_step makes each optimizer's turn a context manager, goes from the last optimizer to the first, and uses other keys.


def state_tensors(optimizer):
    """Every tensor of its state, in a fixed order; [] before the first step."""
    return [t for state in optimizer.state.values() for t in state.values()]


class Turn:
    """Inside it the state of `optimizer` has memory, and its values."""

    def __init__(self, optimizer, store, key):
        self.optimizer, self.store, self.key = optimizer, store, key

    def __enter__(self):
        held = state_tensors(self.optimizer)
        for tensor in held:
            tensor.untyped_storage().resize_(tensor.nbytes)
        if held:
            self.store.read(self.key, held)
        return self.optimizer

    def __exit__(self, kind, error, trace):
        if kind is not None:
            return False
        held = state_tensors(self.optimizer)  # the first step has just made it
        if held:
            self.store.write(self.key, held)
        for tensor in held:
            tensor.untyped_storage().resize_(0)
        return False


def offloaded_step(optimizers: list, store) -> None:
    for place in reversed(range(len(optimizers))):
        with Turn(optimizers[place], store, f"moments-{place}") as optimizer:
            optimizer.step()
    store.commit()
