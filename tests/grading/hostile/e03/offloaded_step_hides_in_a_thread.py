# exercise: offloaded_step
# says: starts a thread

from concurrent.futures import ThreadPoolExecutor


def offloaded_step(optimizers, store):
    with ThreadPoolExecutor(1) as pool:
        for optimizer in optimizers:
            pool.submit(optimizer.step).result()
