# exercise: offloaded_step
# says: until then the state of the step before is the valid one
# Commits after every unit instead of once at the end: killed halfway, the store holds a mixture
# of two steps.

def offloaded_step(optimizers: list, store) -> None:
    for i, optimizer in enumerate(optimizers):
        key = f"unit-{i}"
        state = state_tensors(optimizer)
        if state:
            for t in state:
                t.untyped_storage().resize_(t.nbytes)
            store.read(key, state)
        optimizer.step()
        state = state_tensors(optimizer)
        if state:
            store.write(key, state)
            for t in state:
                t.untyped_storage().resize_(0)
        store.commit()
