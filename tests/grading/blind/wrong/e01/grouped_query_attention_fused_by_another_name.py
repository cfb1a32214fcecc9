# exercise: grouped_query_attention
# says: write attention out with plain matmuls and a softmax
# It calls torch's fused attention under its operator name; "With plain matmuls and a softmax,
# not the fused `F.scaled_dot_product_attention`".

import torch


def grouped_query_attention(q, k, v) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(groups, dim=1)
    v = v.repeat_interleave(groups, dim=1)
    attend = torch.ops.aten.scaled_dot_product_attention
    return attend(q, k, v, None, 0.0, True)
