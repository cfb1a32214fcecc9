# exercise: parameter_count
# says: the last norm is missing
# Forgets the last norm, the D weights between the layers and the head.

def parameter_count(config) -> int:
    D, C = config.hidden_size, config.head_size
    attention = 2 * D * C * (config.heads + config.kv_heads)
    layer = attention + 3 * D * config.ffn_size + 2 * D
    matrices = 1 if config.tied else 2
    return config.layers * layer + matrices * config.vocab_size * D
