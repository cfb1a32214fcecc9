# exercise: parameter_count
# says: that takes H·C = D
# takes q and o as D x D, right only where H * C = D

def parameter_count(config) -> int:
    D, F = config.hidden_size, config.ffn_size
    kv = config.kv_heads * config.head_size
    layer = 2 * D * D + 2 * D * kv + 3 * D * F + 2 * D
    ends = config.vocab_size * D * (1 if config.tied else 2)
    return config.layers * layer + ends + D
