# exercise: offloaded_step
# says: unit by unit | must give its memory back


def offloaded_step(optimizers, store):
    for optimizer in optimizers:
        optimizer.step()
    store.commit()
