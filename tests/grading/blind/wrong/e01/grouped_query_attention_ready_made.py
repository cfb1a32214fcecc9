# exercise: grouped_query_attention
# says: write attention out with plain matmuls and a softmax
# calls torch's fused scaled_dot_product_attention, but the docstring says "With plain matmuls
# and a softmax".

import torch
import torch.nn.functional as F


def grouped_query_attention(q, k, v) -> torch.Tensor:
    share = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(share, dim=1)
    v = v.repeat_interleave(share, dim=1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
