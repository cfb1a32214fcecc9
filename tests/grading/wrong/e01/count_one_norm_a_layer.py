# exercise: parameter_count
# says: each layer has two norms


def parameter_count(config):
    D, embedding = config.hidden_size, config.vocab_size * config.hidden_size
    layer = (
        2 * D * config.head_size * (config.heads + config.kv_heads) + 3 * D * config.ffn_size + D
    )
    return embedding + config.layers * layer + D + (0 if config.tied else embedding)
