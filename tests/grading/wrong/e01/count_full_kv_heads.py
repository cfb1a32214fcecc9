# exercise: parameter_count
# says: keys and values have kv_heads heads


def parameter_count(config):
    D, embedding = config.hidden_size, config.vocab_size * config.hidden_size
    layer = 4 * D * config.head_size * config.heads + 3 * D * config.ffn_size + 2 * D
    return embedding + config.layers * layer + D + (0 if config.tied else embedding)
