# exercise: offloaded_step
# says: wrote nothing to the store


def offloaded_step(optimizers, store):
    for optimizer in optimizers:
        optimizer.step()
    store.commit()
