import torch


def ring_all_reduce(group, tensor):
    """Both laps in one loop over one buffer."""
    n, me = group.size, group.rank
    flat = tensor.clone().flatten()
    parts = flat.tensor_split(n)
    right, left = (me + 1) % n, (me - 1) % n
    for step in range(2 * (n - 1)):
        going, coming = parts[(me - step) % n], parts[(me - step - 1) % n]
        box = group.exchange(going, right, torch.empty_like(coming), left)
        coming.copy_(coming + box if step < n - 1 else box)
    return flat.reshape(tensor.shape)
