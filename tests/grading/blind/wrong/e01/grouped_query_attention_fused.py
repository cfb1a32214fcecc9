# exercise: grouped_query_attention
# says: write attention out with plain matmuls and a softmax
# Calls the ready-made fused attention under another name; the docstring says "With plain
# matmuls and a softmax, not the fused `F.scaled_dot_product_attention`".

import torch
from torch.nn.functional import scaled_dot_product_attention as attend


def grouped_query_attention(q, k, v) -> torch.Tensor:
    group = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(group, dim=1)
    v = v.repeat_interleave(group, dim=1)
    return attend(q, k, v, is_causal=True)
