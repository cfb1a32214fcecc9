# exercise: parameter_count
# says: that takes H·C = D
# Takes q and o as D x D; "q and o with H·C (which need not be D)".

def parameter_count(config) -> int:
    D, L, F = config.hidden_size, config.layers, config.ffn_size
    embedding = config.vocab_size * D
    attention = 2 * D * D + 2 * D * config.kv_heads * config.head_size
    layer = attention + 3 * D * F + 2 * D
    return embedding + L * layer + D + (0 if config.tied else embedding)
