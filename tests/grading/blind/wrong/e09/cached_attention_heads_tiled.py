# exercise: cached_attention
# says: a query head has read another one's keys
# query head h reads key/value head h % K in place of h // (H/K): repeat in place of
# repeat_interleave

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
    mask = torch.arange(end)[None, :] <= positions[:, None]
    times = q.shape[1] // keys.shape[1]
    y = torch.nn.functional.scaled_dot_product_attention(
        q,
        keys[:, :, :end].repeat(1, times, 1, 1),
        values[:, :, :end].repeat(1, times, 1, 1),
        attn_mask=mask,
    )
    return layer.o(y.transpose(1, 2).flatten(2))
