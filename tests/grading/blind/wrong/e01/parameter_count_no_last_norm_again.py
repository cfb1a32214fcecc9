# exercise: parameter_count
# says: the last norm is missing
# forgets the last norm

def parameter_count(config) -> int:
    D, F, C = config.hidden_size, config.ffn_size, config.head_size
    layer = 2 * D * C * (config.heads + config.kv_heads) + 3 * D * F + 2 * D
    return config.layers * layer + config.vocab_size * D * (2 - int(config.tied))
