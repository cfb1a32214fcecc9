# exercise: cached_attention
# says: turn a key before it is kept
# keeps keys as they come and turns all of them at every reading; the output is right, what lies
# in `keys` is not (and work is repeated)

import torch
import torch.nn.functional as F


def cached_attention(layer, x, rope, keys, values, length: int):
    B, T, _ = x.shape
    end = length + T
    new, every = torch.arange(length, end), torch.arange(end)
    q = rope(layer.split(layer.q(x)), new).transpose(1, 2)
    keys[:, :, length:end] = layer.split(layer.k(x)).transpose(1, 2)
    values[:, :, length:end] = layer.split(layer.v(x)).transpose(1, 2)
    turned = rope(keys[:, :, :end].transpose(1, 2), every).transpose(1, 2)
    seen = every[None, :] <= new[:, None]
    out = F.scaled_dot_product_attention(
        q, turned, values[:, :, :end], attn_mask=seen, enable_gqa=True
    )
    return layer.o(out.transpose(1, 2).reshape(B, T, -1))
