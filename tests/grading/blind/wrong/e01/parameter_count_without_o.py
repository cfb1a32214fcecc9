# exercise: parameter_count
# says: one of q and o is missing
# counts q, k and v, and not the matrix that joins the heads
def parameter_count(config) -> int:
    D, C = config.hidden_size, config.head_size
    attention = D * C * (config.heads + 2 * config.kv_heads)
    layer = attention + 3 * D * config.ffn_size + 2 * D
    ends = config.vocab_size * D * (1 if config.tied else 2)
    return config.layers * layer + ends + D
