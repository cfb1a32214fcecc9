# exercise: ulysses
# says: attention to this rank's own tokens

import torch
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size, exchange):
    if q.shape[1] % size:
        raise ValueError(f"{q.shape[1]} heads cannot be shared by {size} ranks")
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
