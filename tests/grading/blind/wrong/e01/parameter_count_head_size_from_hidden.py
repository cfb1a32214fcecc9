# exercise: parameter_count
# says: a head has `head_size` numbers
# takes H·C for D (q and o as D x D, head size as D // H), right only where heads times
# head_size is hidden_size, but the text says "q and o with H·C, k and v with K·C".

def parameter_count(config) -> int:
    D, L = config.hidden_size, config.layers
    attention = 2 * D * D + 2 * D * config.kv_heads * (D // config.heads)
    layer = attention + 3 * D * config.ffn_size + 2 * D
    embedding = config.vocab_size * D
    return embedding + L * layer + D + (0 if config.tied else embedding)
