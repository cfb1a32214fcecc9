# exercise: cached_attention
# says: the first query was lined up with the first key
# uses is_causal=True for chunks of several tokens: lines up the first query with the first key,
# wrong where length > 0

import torch


def cached_attention(layer, x, rope, keys, values, length: int):
    T = x.shape[1]
    end = length + T
    positions = torch.arange(length, end)
    q = rope(layer.split(layer.q(x)), positions).transpose(1, 2)
    k = rope(layer.split(layer.k(x)), positions).transpose(1, 2)
    v = layer.split(layer.v(x)).transpose(1, 2)
    keys[:, :, length:end] = k
    values[:, :, length:end] = v
    y = torch.nn.functional.scaled_dot_product_attention(
        q, keys[:, :, :end], values[:, :, :end], is_causal=T > 1, enable_gqa=True
    )
    return layer.o(y.transpose(1, 2).flatten(2))
