def offloaded_step(optimizers, store):
    """Unit i + 1 is read before unit i steps."""
    fetch(optimizers, 0, store)
    for place, optimizer in enumerate(optimizers):
        fetch(optimizers, place + 1, store)
        optimizer.step()
        kept = tensors_of(optimizer)
        store.write(str(place), kept)
        resize(kept, full=False)
    store.commit()


def fetch(optimizers, place, store):
    kept = tensors_of(optimizers[place]) if place < len(optimizers) else []
    if kept:
        resize(kept, full=True)
        store.read(str(place), kept)


def resize(tensors, full):
    for tensor in tensors:
        tensor.untyped_storage().resize_(tensor.nbytes if full else 0)


def tensors_of(optimizer):
    found = []
    for state in optimizer.state.values():
        found += list(state.values())
    return found
