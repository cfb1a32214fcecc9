# exercise: offloaded_step
# says: AdamW's step counters
# the 0-d step counters are neither written nor freed ("outside its own turn its state has no
# memory"; state_tensors is "Every tensor of its state").

import torch


def state_tensors(optimizer):
    """Every tensor of its state, in a fixed order; [] before the first step."""
    return [t for state in optimizer.state.values() for t in state.values()]


def offloaded_step(optimizers: list, store) -> None:
    for i, optimizer in enumerate(optimizers):
        moments = [t for t in state_tensors(optimizer) if t.dim() > 0]
        if moments:
            for tensor in moments:
                tensor.untyped_storage().resize_(tensor.nbytes)
            store.read(f"unit-{i}", moments)
        optimizer.step()
        moments = [t for t in state_tensors(optimizer) if t.dim() > 0]
        if moments:
            store.write(f"unit-{i}", moments)
            for tensor in moments:
                tensor.untyped_storage().resize_(0)
    store.commit()
